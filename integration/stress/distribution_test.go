package stress

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/nftproxy/nftproxy/model"
)

// connections is the number of clients of a Service, each with a port of its own.
const connections = 30_000

// significance is the probability below which a spread counts as uneven, given that all endpoints
// have the same chance. One even spread in a thousand counts as uneven by chance, so there is a
// second try: both fail by chance once in a million times.
const significance = 0.001

// mostEndpoints is the largest number of endpoints that is tried.
const mostEndpoints = 100

func TestDistribution(t *testing.T) {
	t.Run("connections spread evenly", testConnectionsSpreadEvenly)
	t.Run("an uneven spread is noticed", testUnevenSpreadIsNoticed)
}

func testConnectionsSpreadEvenly(t *testing.T) {
	c := newCluster(t)
	counters := countDatagrams(t, c.Lab)
	for _, family := range model.Families {
		for _, n := range []int{3, 7, mostEndpoints} {
			t.Run(fmt.Sprintf("over %d endpoints, %s", n, family), func(t *testing.T) {
				c.sync(t, full(service("web", model.UDP, family, 10, podNumbers(n)...)))
				for range 2 {
					spread := counters.spread(t, c.Lab, family)
					if p := chiSquareTest(spread[:n]); p > significance {
						t.Logf("p = %.4f", p)
						return
					}
					t.Logf("connections by endpoint: %v", spread[:n])
				}
				t.Errorf("an even spread comes out like these with a probability below %v", significance)
			})
		}
	}
}

func podNumbers(n int) (numbers []byte) {
	for i := range n {
		numbers = append(numbers, byte(i+1))
	}
	return numbers
}

// counters counts the datagrams to each address of a pod.
type counters struct {
	byAddress map[netip.Addr]*atomic.Int64
	// underway has a place for each datagram that was sent and has not arrived. There are few
	// places, so that no buffer overflows.
	underway chan struct{}
}

// countDatagrams adds a pod with the addresses of all endpoints, which counts.
func countDatagrams(t *testing.T, l *lab.Lab) *counters {
	t.Helper()
	c := &counters{byAddress: map[netip.Addr]*atomic.Int64{}, underway: make(chan struct{}, 64)}
	for _, family := range model.Families {
		for _, n := range podNumbers(mostEndpoints) {
			c.byAddress[podIP(family, n)] = &atomic.Int64{}
		}
	}
	pod, err := l.AddPod("endpoints", slices.Collect(maps.Keys(c.byAddress))...)
	if err != nil {
		t.Fatal(err)
	}
	for addr, count := range c.byAddress {
		conn := lab.ListenUDP(t, pod, netip.AddrPortFrom(addr, targetPort))
		go func() {
			for {
				if _, _, err := conn.ReadFromUDPAddrPort(make([]byte, 1)); err != nil {
					return
				}
				count.Add(1)
				<-c.underway
			}
		}()
	}
	return c
}

// spread sends one datagram each from many ports, and returns how many reached each endpoint.
func (c *counters) spread(t *testing.T, l *lab.Lab, family model.Family) (counts []int64) {
	t.Helper()
	for _, count := range c.byAddress {
		count.Store(0)
	}
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(clusterIP(family, 10), 80))
	if err := l.Client.Do(func() error {
		for i := range connections {
			select {
			case c.underway <- struct{}{}:
			case <-time.After(patience):
				return errors.New("datagrams got lost")
			}
			if err := sendFrom(1024+i, to); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for range cap(c.underway) { // Until all have arrived, no place is free for all of these.
		select {
		case c.underway <- struct{}{}:
			continue
		case <-time.After(patience):
		}
		if lost++; lost > 3 { // so many change no distribution
			t.Fatal("datagrams got lost")
		}
	}
	for range cap(c.underway) {
		<-c.underway
	}
	// The next connections come from the same ports.
	if err := l.Node.FlushConntrack(); err != nil {
		t.Fatal(err)
	}
	for _, n := range podNumbers(mostEndpoints) {
		counts = append(counts, c.byAddress[podIP(family, n)].Load())
	}
	return counts
}

func sendFrom(port int, to *net.UDPAddr) error {
	conn, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, to)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("?"))
	return err
}

// chiSquareTest returns the probability that counts are as uneven as these, or more, if
// everything counted had the same chance to be counted in each.
func chiSquareTest(counts []int64) float64 {
	var total, sum float64
	for _, n := range counts {
		total += float64(n)
	}
	want := total / float64(len(counts))
	for _, n := range counts {
		sum += (float64(n) - want) * (float64(n) - want) / want
	}
	return chiSquareSurvival(sum, len(counts)-1)
}

// chiSquareSurvival is the probability that a chi-square variable with that many degrees of
// freedom is above x: the regularised incomplete gamma function Q(degrees/2, x/2), from
// Q(1/2, y) or Q(1, y) up in steps of Q(a+1, y) = Q(a, y) + yᵃ e⁻ʸ / Γ(a+1).
func chiSquareSurvival(x float64, degrees int) float64 {
	y := x / 2
	a, q := 1.0, math.Exp(-y)
	if degrees%2 == 1 {
		a, q = 0.5, math.Erfc(math.Sqrt(y))
	}
	for ; a < float64(degrees)/2; a++ {
		logGamma, _ := math.Lgamma(a + 1)
		q += math.Exp(a*math.Log(y) - y - logGamma)
	}
	return q
}

// The critical values are those of printed tables (NIST/SEMATECH e-Handbook, 1.3.6.7.4).
func TestChiSquareSurvival(t *testing.T) {
	for _, tt := range []struct {
		x       float64
		degrees int
		want    float64
	}{
		{3.841, 1, 0.05}, {10.828, 1, 0.001},
		{5.991, 2, 0.05}, {13.816, 2, 0.001},
		{12.592, 6, 0.05}, {22.458, 6, 0.001},
		{123.225, 99, 0.05}, {148.230, 99, 0.001},
	} {
		if got := chiSquareSurvival(tt.x, tt.degrees); math.Abs(got-tt.want) > tt.want/100 {
			t.Errorf("Q(%v, %d degrees of freedom) = %v, want %v", tt.x, tt.degrees, got, tt.want)
		}
	}
}

func testUnevenSpreadIsNoticed(t *testing.T) {
	for name, tt := range map[string]struct {
		counts []int64
		even   bool
	}{
		"exactly even":               {[]int64{10_000, 10_000, 10_000}, true},
		"as uneven as chance has it": {[]int64{10_080, 9_950, 9_970}, true},
		"one gets 4 % more":          {[]int64{10_400, 9_800, 9_800}, false},
		"one gets nothing":           {[]int64{15_000, 15_000, 0}, false},
	} {
		if p := chiSquareTest(tt.counts); p > significance != tt.even {
			t.Errorf("%s: p = %v, want even to be %v", name, p, tt.even)
		}
	}
}
