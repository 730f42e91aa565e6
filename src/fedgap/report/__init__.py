"""How results look: numbers as people read them, tables that never cut a number, pictures. No maths.

Nothing is imported here, so that a result can be made where rich and matplotlib are not installed.
"""
