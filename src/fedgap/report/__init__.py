"""The presentation of results: number formats, tables that never shorten a number, pictures. No maths.

Nothing is imported here, so that results can be computed without rich and matplotlib.
"""
