// Package syscalls puts a judge between a thread and the kernel: seccomp hands the judge each system call that a filter
// selects, and the judge has it run, has it fail, or answers it itself. So tests inject faults beneath the code under
// test, which has no hook for that.
//
// A filter stays on its thread, and on what the thread starts, for as long as that lives.
package syscalls
