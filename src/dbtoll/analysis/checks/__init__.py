"""May those numbers enter: the checks of servers, clocks, noise, caches and probes."""
