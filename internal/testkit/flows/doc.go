// Package flows says in YAML what must become of packets, and sends them to find out.
//
// A flow file lists flows. Each names who sends where, and what must come of it:
//
//	flows:
//	- name: a pod reaches every ready endpoint
//	  from: client
//	  to: 10.96.0.10:80
//	  expect:
//	    endpoints: [10.244.1.5:8080, 10.244.2.6:8080]
//	    source: kept
//	- name: a port that the Service does not have is refused
//	  from: outside
//	  to: "[fd00:10:96::10]:81"
//	  protocol: UDP
//	  expect:
//	    result: refused
//
// [Parse] reads the file, for whoever wants to judge it: a program that walks packets through rules in
// memory, or a [Runner], which sends them for real through the node under test of a [lab.Lab].
package flows
