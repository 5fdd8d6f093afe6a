package main

import (
	"runtime"
	"testing"
	"time"
)

func TestReturnMemory(t *testing.T) {
	const size = 64 << 20
	garbage := make([]byte, size)
	for i := 0; i < len(garbage); i += 4096 {
		garbage[i] = 1
	}
	inUse := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapSys - stats.HeapReleased
	}
	before := inUse()
	runtime.KeepAlive(garbage)
	returnMemory(time.Millisecond)
	for deadline := time.Now().Add(10 * time.Second); inUse()+size/2 > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("of %d MB in use, with %d MB of garbage among them, %d MB are still there", before>>20, size>>20, inUse()>>20)
		}
	}
}
