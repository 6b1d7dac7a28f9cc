"""`/openapi.json`: the routes, described for machines."""
