package process

import (
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ProcessorTime returns the time of processors that this process has used so far, to the microsecond.
func ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// ProcessorTimeOf returns the time of processors that another process has used so far, to 10 ms.
func ProcessorTimeOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	return time.Duration(stat(t, pid).CPUTime() * float64(time.Second))
}

// ResidentBytes returns how much memory a process has.
func ResidentBytes(t testing.TB, pid int) int {
	t.Helper()
	return stat(t, pid).ResidentMemory()
}

func stat(t testing.TB, pid int) procfs.ProcStat {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
