// Package soak runs the proxy for long under random changes, faults and steady traffic.
//
//	make soak               # 30 minutes
//	make soak SOAK=2h SEED=7
//
// One goroutine draws every change and every fault from the seed, so a seed replays the same sequence, though not
// the same timing. The last line of the output is the verdict.
package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/apiservertest"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/nft"
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

// A soak is a cluster whose node runs the proxy, with everything that happens to it.
type soak struct {
	lab        *lab.Lab
	conn       *nft.Conn
	server     *apiservertest.Server
	kubeconfig string
	random     *rand.Rand
	cluster    *cluster
	traffic    *traffic
	samples    *samples
	proxy      *lab.Process

	steps       map[string]int // how often each kind of change and fault happened
	log         []string       // the same in the order in which it happened
	checkpoints int
	resting     time.Time // from then on the process is not replaced, so that its memory can be judged
}

// pace is the pause between two steps.
const pace = 50 * time.Millisecond

func newSoak(t *testing.T, random *rand.Rand) *soak {
	s := &soak{lab: lab.ForTest(t), random: random, steps: map[string]int{}}
	s.conn = lab.Conn(t, s.lab.Node)
	s.server, s.kubeconfig = lab.APIServer(t, s.lab.Node)
	s.cluster = newCluster(t, s.server, random)
	s.samples = &samples{host: s.lab.Node}
	s.start(t)
	s.awaitWanted(t)
	s.traffic = newTraffic(t, s.lab)
	return s
}

// start starts the proxy, on top of the rules of the one before.
func (s *soak) start(t *testing.T) {
	t.Helper()
	s.proxy = lab.Start(t, s.lab.Node, "kube-proxy", "--kubeconfig", s.kubeconfig, "--hostname-override", lab.NodeName,
		"--cluster-cidr", clusterCIDRs, "--metrics-bind-address", metricsAddress, "-v=4")
	s.samples.follow(s.proxy.Cmd.Process.Pid)
}

// run changes things until the time is over. In the second half the process is left running, and its memory,
// descriptors and goroutines must stay flat.
func (s *soak) run(t *testing.T, length time.Duration) {
	t.Helper()
	begin := time.Now()
	s.resting = begin.Add(length / 2)
	ctx, cancel := context.WithDeadline(t.Context(), begin.Add(length))
	defer cancel()
	s.traffic.start(t)
	go s.samples.take(ctx)
	interval := max(length/40, 10*time.Second)
	next := begin.Add(interval)
	for ctx.Err() == nil && !t.Failed() {
		s.step(t)
		if time.Now().After(next) {
			s.checkpoint(t)
			next = time.Now().Add(interval)
		}
		time.Sleep(pace)
	}
	s.checkpoint(t)
	s.traffic.end(t)
	s.samples.judge(t, s.resting.Add(length/10))
}

// step draws one change, or now and then a fault.
func (s *soak) step(t *testing.T) {
	t.Helper()
	kinds := s.cluster.changes()
	kinds = append(kinds, s.faults(t)...)
	if time.Now().Before(s.resting) {
		kinds = append(kinds, s.restarts(t)...)
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	drawn := s.random.IntN(total)
	for _, k := range kinds {
		if drawn -= k.weight; drawn < 0 {
			s.steps[k.name]++
			s.log = append(s.log, fmt.Sprintf("%s %s", time.Now().Format(time.TimeOnly+".000"), k.name))
			k.do()
			return
		}
	}
}

// A kind is something that can happen.
type kind struct {
	name   string
	weight int
	do     func()
}

func (s *soak) summary() string {
	return fmt.Sprintf("%v, %d checkpoints, %s", *duration, s.checkpoints, s.traffic.summary())
}

func (s *soak) report() string {
	var b strings.Builder
	for _, kinds := range [][]kind{s.cluster.changes(), s.faults(nil), s.restarts(nil)} {
		for _, k := range kinds {
			fmt.Fprintf(&b, "%6d × %s\n", s.steps[k.name], k.name)
		}
	}
	fmt.Fprintf(&b, "%s\n%s\nthe last steps:\n%s", s.traffic.summary(), s.samples.report(), strings.Join(s.log[max(0, len(s.log)-100):], "\n"))
	return b.String()
}
