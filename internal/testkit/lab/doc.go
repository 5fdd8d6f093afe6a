// Package lab builds a small cluster out of network namespaces, for sending real packets
// through the rules of one node.
//
//	           local pods, client                    remote pods
//	          (a namespace each, veth-…)          (addresses on node-2)
//	                   │                                  │
//	outside ──── node-1, under test ───────────────── node-2
//
// Every packet between two of them passes node-1, is forwarded there, and arrives
// untouched unless node-1 has rules that say otherwise. Both IP families work alike.
//
// Nothing here has a name in the file system: namespaces live as long as their file
// descriptors, so a process that dies leaves nothing behind, and a process that is root
// only in its own user namespace can build a lab as well. The namespace that the process
// started in is never changed. All of that is netlink, no program is executed.
//
// For tests there are labs and connections that end with the test, the commands of this module inside a
// host, and an API server for them.
package lab
