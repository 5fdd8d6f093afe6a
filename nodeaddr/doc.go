// Package nodeaddr finds the machine's own addresses. A Service proxy asks for them twice: to serve node
// ports on those that nodePortAddresses picks (Within), and to tell whether a packet or a flow that went to
// an address went to this machine (Local).
package nodeaddr
