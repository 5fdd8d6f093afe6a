// Package soak runs the proxy for long under random changes, faults and steady traffic.
//
//	make soak               # 30 minutes
//	make soak SOAK=2h SEED=7
//
// One goroutine draws every change and every fault from the seed, so a seed replays the same sequence, though not
// the same timing. The last line of the output is the verdict.
package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

var (
	duration = flag.Duration("soak", 2*time.Minute, "how long the soak runs")
	seed     = flag.Uint64("seed", 0, "what the changes and faults are drawn from; 0 draws one and prints it")
)

// verdict is the last line of the output, empty when no soak ran.
var verdict string

func TestMain(m *testing.M) {
	code := lab.Run(m)
	if verdict != "" {
		fmt.Println(verdict)
	}
	os.Exit(code)
}

func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d; the same again: make soak SOAK=%v SEED=%d", *seed, *duration, *seed)
	verdict = fmt.Sprintf("soak: FAILED, seed %d", *seed)
	s := newSoak(t, rand.New(rand.NewPCG(*seed, 0)))
	s.run(t, *duration)
	t.Log(s.report())
	if !t.Failed() {
		verdict = fmt.Sprintf("soak: passed, seed %d: %s", *seed, s.summary())
	}
}
