package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// faultAddress is the ClusterIP of the Service that clients dial while something goes wrong.
const faultAddress = "10.96.0.77"

// createFaultService starts the pods first (10.244.1.5) and second (10.244.1.6), and creates the Service at faultAddress,
// which leads to the first.
func (f *withServer) createFaultService(t *testing.T) {
	t.Helper()
	servePod(t, f.lab, "first", "10.244.1.5")
	servePod(t, f.lab, "second", "10.244.1.6")
	service, slice := serviceAt("fault", faultAddress, "10.244.1.5")
	lab.Create(t, f.server, service, slice)
}

// moveFaultService has the Service lead to another endpoint.
func (f *withServer) moveFaultService(t *testing.T, endpoint string) {
	t.Helper()
	_, slice := serviceAt("fault", faultAddress, endpoint)
	lab.Update(t, f.server, slice)
}

func (f *withServer) deleteFaultService(t *testing.T) {
	t.Helper()
	service, slice := serviceAt("fault", faultAddress)
	lab.Delete(t, f.server, service, slice)
}

// reaches waits until a new connection to faultAddress reaches a pod.
func (f *troubled) reaches(t *testing.T, pod string) {
	t.Helper()
	f.reachesWithin(t, await.Patience, pod)
}

func (f *troubled) reachesWithin(t *testing.T, patience time.Duration, pod string) {
	t.Helper()
	await.Within(t, patience, "the Service leads to "+pod, func() error {
		conn, name, err := dialAt(f.lab.Client, faultAddress+":80")
		if err != nil {
			return err
		}
		conn.Close()
		if name != pod {
			return fmt.Errorf("it leads to %s", name)
		}
		return nil
	})
}

// dialThroughout waits until the proxy is healthy and clients reach the first pod. From then on until end is called no
// connection to faultAddress may fail. At the end the proxy uses no more than before, and SIGTERM ends it with code 0.
func (f *withServer) dialThroughout(t *testing.T, p *lab.Process) (end func()) {
	t.Helper()
	f.reaches(t, "first")
	f.becomes(t, "200 200")
	before := f.usage(t, p)
	stop := keepDialingAt(t, f.lab.Client, faultAddress+":80")
	return func() {
		t.Helper()
		stop()
		f.comesBackTo(t, p, before)
		if err := p.Stop(t); err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	}
}

// recovers waits until health is good and has no problem.
func (f *troubled) recovers(t *testing.T) {
	t.Helper()
	await.Until(t, "health has no problem any more", func() error {
		if codes, body, err := f.health(); codes != "200 200" || strings.Contains(body, "problems") {
			return fmt.Errorf("%s %s, %v", codes, body, err)
		}
		return nil
	})
}
