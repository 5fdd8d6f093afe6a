package flows

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestObserve(t *testing.T) {
	t.Run("tells which expectations a connection meets", testObserveTellsWhichExpectationsAConnectionMeets)
}

func testObserveTellsWhichExpectationsAConnectionMeets(t *testing.T) {
	r := newRunner(t, handWritten)
	reaches := func(source Source, endpoints ...string) Expectation {
		e := Expectation{Source: source}
		for _, endpoint := range endpoints {
			e.Endpoints = append(e.Endpoints, netip.MustParseAddrPort(endpoint))
		}
		return e
	}
	some := []Expectation{
		reaches(Kept, "10.244.1.5:8080", "10.244.2.6:8080"), reaches(Masqueraded, "10.244.1.5:8080", "10.244.2.6:8080"),
		reaches("", "10.244.1.5:8080", "10.244.2.6:8080"), {Result: Refused}, {Result: Dropped},
	}
	for _, tc := range []struct {
		name string
		to   string
		want []int
	}{
		{"a masqueraded one", "10.96.0.10:81", []int{1, 2}},
		{"a refused one", "10.96.0.10:82", []int{3}},
		{"a dropped one", "10.96.0.10:83", []int{4}},
		{"one that reaches something else", "10.244.1.6:8080", nil},
	} {
		for _, protocol := range []Protocol{TCP, UDP, SCTP} {
			t.Run(tc.name+" with "+string(protocol), func(t *testing.T) {
				met, became, err := r.Observe(Flow{From: FromClient, To: netip.MustParseAddrPort(tc.to), Protocol: protocol}, some)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, met); diff != "" {
					t.Errorf("it %s; met (-want +got):\n%s", became, diff)
				}
			})
		}
	}
	met, became, err := r.Observe(Flow{From: FromClient, To: netip.MustParseAddrPort("192.168.0.2:9090"), Protocol: TCP}, []Expectation{{Result: Untouched}})
	if diff := cmp.Diff([]int{0}, met); diff != "" || err != nil {
		t.Errorf("an untouched one %s, error %v; met (-want +got):\n%s", became, err, diff)
	}
}
