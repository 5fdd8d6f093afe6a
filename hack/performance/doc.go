// Command performance measures a Backend with different numbers of Services, in network namespaces that it makes, and
// draws the chart of docs/performance.md. Its benchmark measures the way of a packet through the rules. It needs root.
package main
