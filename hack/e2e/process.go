package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// startOf reads when a process started. A zombie has ended.
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name may have anything in it
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return "", os.ErrProcessDone
	}
	return string(fields[19]), nil
}

// end asks a process to end, and makes it if it has not after the patience.
func (id processID) end(patience time.Duration) {
	id.signal(syscall.SIGTERM)
	for deadline := time.Now().Add(patience); id.alive() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	id.signal(syscall.SIGKILL)
	for id.alive() {
		time.Sleep(20 * time.Millisecond)
	}
}
