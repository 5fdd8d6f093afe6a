// Package nodeaddr finds the machine's own addresses. A Service proxy needs them for two purposes: to
// serve on those that nodePortAddresses selects (Within), and to decide whether the destination of a packet
// or a flow is this machine (Local).
package nodeaddr
