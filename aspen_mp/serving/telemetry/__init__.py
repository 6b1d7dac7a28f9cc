"""Records of requests: counts that front ends share, traces, metrics under other names."""
