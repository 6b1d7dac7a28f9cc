"""Models over HTTP: `aspen-mp serve` (extra ``serve``)."""
