package server_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nftproxy/nftproxy/nodelocal/server"
)

func TestChurn(t *testing.T) {
	t.Run("reaches backends as few changes", testChurnReachesBackendsAsFewChanges)
}

// testChurnReachesBackendsAsFewChanges sends what a cluster of 1,000 Services sends in a bad hour, at once: half of
// 20,000 events touches nothing that a node does, and endpoints of a few broken Services flap.
func testChurnReachesBackendsAsFewChanges(t *testing.T) {
	const services, events = 1000, 20_000
	tr := servingTracker(1000)
	fill(tr, services, 5)
	tr.Synced()
	b := newTestServer(t, tr, server.Options{})
	follower := &backend{}
	follow(t, b.address, "node-1", follower)
	eventually(t, func() string {
		if syncs, _ := follower.counts(); syncs != 1 {
			return fmt.Sprint(syncs, " Syncs")
		}
		return ""
	})
	begin := time.Now()
	random := rand.New(rand.NewPCG(20_000, 1))
	kinds := map[string]int{}
	for e := range events {
		i := random.IntN(services)
		switch random.IntN(20) {
		case 0, 1, 2, 3, 4, 5, 6: // endpoints of ten Services fail their readiness probe, and pass it
			kinds["flapping"]++
			i %= 10
			s := slice(i, 5, i*5)
			s.Endpoints[random.IntN(5)].Conditions.Ready = new(e%2 == 0)
			tr.SetEndpointSlice(s)
		case 7, 8, 9, 10: // conditions and other status of a Service
			kinds["status"]++
			s := service(i)
			s.ResourceVersion = fmt.Sprint(e)
			s.Status.Conditions = []metav1.Condition{{Type: "Programmed", LastTransitionTime: metav1.Now()}}
			tr.SetService(s)
		case 11, 12, 13, 14:
			kinds["labels"]++
			s := service(i)
			s.Labels = map[string]string{"deployed": fmt.Sprint(e)}
			s.Annotations = map[string]string{"checked": fmt.Sprint(e)}
			tr.SetService(s)
		case 15, 16, 17: // heartbeats of other nodes
			kinds["nodes"]++
			n := &corev1.Node{}
			n.Name = nodeName(2 + random.IntN(900))
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
			tr.SetNode(n)
		default: // a slice is written again, with another trigger time
			kinds["triggers"]++
			s := slice(i, 5, i*5)
			s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
			if i >= 10 {
				tr.SetEndpointSlice(s)
			}
		}
	}
	for i := range 10 {
		tr.SetEndpointSlice(slice(i, 5, i*5)) // all pass
	}
	tr.SetService(service(services)) // the end
	eventually(t, func() string {
		follower.mu.Lock()
		defer follower.mu.Unlock()
		if n := len(follower.state.Ports); n != services+1 {
			return fmt.Sprint(n, " ports")
		}
		return ""
	})
	syncs, changes := follower.counts()
	t.Logf("%d events (%v) reached the backend as %d changes in %d Syncs", events, kinds, changes, syncs-1)
	// A machine that is slow spreads the events over more batches, one each 50 ms at
	// most. Each has the ten that flap at most.
	took := time.Since(begin)
	most := max(events/100, 10*(2+int(took/(50*time.Millisecond))))
	if changes > most {
		t.Errorf("%d changes in %s, want at most %d", changes, took, most)
	}
}
