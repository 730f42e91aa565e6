"""Who prices the rounds of a plan: enumeration, bounded search, and local search."""
