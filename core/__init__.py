"""The ground floor, which imports no package of mlctl: errors, files, locks, clocks, ports."""
