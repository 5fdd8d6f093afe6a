// Package protocol is what the host and the first process of a test machine agree on: where files are, and how
// results are told on the console.
package protocol

// Paths in the machine.
const (
	Source   = "/src"      // the module's files, so that tests find their data
	Binaries = "/binaries" // the tests, kube-proxy and ruledump
	Modules  = "/modules"  // 000-name.ko, 001-name.ko, …: to be loaded in this order
	JobFile  = "/job.json" // a Job
)

// A Job is one run of a test binary.
type Job struct {
	// Dir is the working directory.
	Dir string
	// Path is the path of the binary.
	Path string
	// Args are its arguments.
	Args []string
	Env  []string // beside what every job has
}

// Lines on the console that are not the tests' own begin with Mark.
//
//	Mark begin
//	Mark end STATUS SECONDS
const Mark = "=@= "
