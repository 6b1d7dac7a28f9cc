"""Benchmarks that draw a figure each: how aspen-mp scales, adds up unlike cores, and what its choices are worth."""
