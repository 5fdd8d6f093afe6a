package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestStep(t *testing.T) {
	failed := tally{requests: 9, failed: 1, errors: []error{errors.New("refused")}}
	for name, c := range map[string]struct {
		step step
		want string
	}{
		"a failed request fails a step that counts":      {step{name: "s", kind: counts, tally: failed}, "1 of 9 requests failed, the first ones: refused"},
		"a step that counts passes without failures":     {step{name: "s", kind: counts, tally: tally{requests: 9}}, ""},
		"a control fails without failed requests":        {step{name: "s", kind: control, tally: tally{requests: 9}}, "none failed"},
		"a control passes with a failed request":         {step{name: "s", kind: control, tally: failed}, ""},
		"a measured step passes with a failed request":   {step{name: "s", kind: measured, tally: failed}, ""},
		"a step without requests fails, measured or not": {step{name: "s", kind: measured}, "no request"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.step.err(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestReportOfScenarios(t *testing.T) {
	swap := scenario{name: "swap", shows: "Proxies are swapped."}
	run := func(s ...step) (string, error) {
		r := report{scenarios: []scenarioResult{{scenario: swap, steps: s, took: 90 * time.Second}}}
		return r.page(), r.verdict()
	}
	fine := step{name: "a to b", kind: counts, note: "a remark", tally: tally{requests: 300, slowest: 1234567 * time.Microsecond}}
	t.Run("a scenario passes", func(t *testing.T) {
		page, err := run(fine)
		if err != nil {
			t.Error(err)
		}
		for _, want := range []string{"`swap` (90 s): Proxies are swapped.", "| swap | a to b | counts | 300 | 0 | 1.235s |", "- swap, a to b: a remark"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %q:\n%s", want, page)
			}
		}
		if strings.Contains(page, "swap,") && strings.Contains(page, "left out the parts swap") {
			t.Errorf("the page says that swap was left out:\n%s", page)
		}
	})
	t.Run("a failed request fails the run", func(t *testing.T) {
		bad := fine
		bad.failed, bad.errors = 2, []error{errors.New("node-1: reset")}
		page, err := run(fine, bad)
		if err == nil || !strings.Contains(err.Error(), "node-1: reset") || !strings.Contains(page, "**Failed:** swap: a to b: 2 of 300") {
			t.Errorf("got %v, and the page\n%s", err, page)
		}
	})
	t.Run("an error fails the run", func(t *testing.T) {
		r := report{scenarios: []scenarioResult{{scenario: swap, steps: []step{fine}, err: errors.New("no pod")}}}
		if err := r.verdict(); err == nil || !strings.Contains(err.Error(), "swap: no pod") {
			t.Errorf("got %v", err)
		}
	})
}

func TestFocus(t *testing.T) {
	specs := []string{"[sig-network] DNS should a [Conformance]", "[sig-network] Services should b", "[sig-network] Services should use SCTP"}
	all, err := selectParts("")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("parts without a spec and scenarios are left out", func(t *testing.T) {
		got, err := all.focused("should b|should c", false, specs)
		if err != nil || len(got.parts) != 1 || got.parts[0].name != "services" || len(got.scenarios) != 0 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("named scenarios stay", func(t *testing.T) {
		if got, err := all.focused("should a", true, specs); err != nil || len(got.scenarios) != len(scenarios) || len(scenarios) == 0 {
			t.Errorf("got %v, %v", got, err)
		}
	})
	for name, focus := range map[string]string{"a focus without a spec is refused": "should z", "a focus on specs that are left out is refused": "SCTP", "a wrong expression is refused": "("} {
		t.Run(name, func(t *testing.T) {
			if got, err := all.focused(focus, false, specs); err == nil {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hostname" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	send := func(dial func(context.Context, string, string) (net.Conn, error), meanwhile func()) tally {
		r := startRequests([]path{{"here", dial, address}})
		time.Sleep(3 * keptInterval)
		meanwhile()
		return r.stop()
	}
	dial := new(net.Dialer).DialContext
	t.Run("requests are counted", func(t *testing.T) {
		if got := send(dial, func() {}); got.requests < 6 || got.failed > 0 || got.slowest == 0 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("a kept connection that breaks is a failure", func(t *testing.T) {
		var conns []net.Conn
		opened := make(chan net.Conn, 1000)
		got := send(func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			opened <- conn
			return conn, err
		}, func() {
			for len(opened) > 0 {
				conns = append(conns, <-opened)
			}
			for _, conn := range conns {
				conn.Close()
			}
			time.Sleep(2 * keptInterval)
		})
		if got.failed == 0 || !strings.Contains(got.errors[0].Error(), "here, kept connection") {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("refused connections are failures", func(t *testing.T) {
		server.Close()
		if got := send(dial, func() {}); got.failed != got.requests || got.requests < 6 || len(got.errors) != errorsKept {
			t.Errorf("got %+v", got)
		}
	})
}

func TestEarlierCommit(t *testing.T) {
	t.Chdir(t.TempDir())
	git := func(args ...string) string {
		t.Helper()
		args = append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgSign=false", "-c", "tag.gpgSign=false"}, args...)
		out, err := exec.Command("git", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "--quiet")
	git("commit", "--quiet", "--allow-empty", "--message=first")
	first := git("rev-parse", "--short=8", "HEAD")
	if got, err := (options{}).earlierCommit(t.Context()); err == nil || !strings.Contains(err.Error(), firstCommit) {
		t.Errorf("without a tag: got %q, %v, want an error about %s, which this repository lacks", got, err, firstCommit)
	}
	git("tag", "--annotate", "--message=release", "v0.1.0")
	git("commit", "--quiet", "--allow-empty", "--message=second")
	second := git("rev-parse", "--short=8", "HEAD")
	for from, want := range map[string]string{"": first, "v0.1.0": first, "HEAD": second} {
		if got, err := (options{from: from}).earlierCommit(t.Context()); got != want || err != nil {
			t.Errorf("--from %q: got %q, %v, want %q", from, got, err, want)
		}
	}
	if got, err := (options{from: "v9"}).earlierCommit(t.Context()); err == nil || !strings.Contains(err.Error(), "v9") {
		t.Errorf("got %q, %v", got, err)
	}
}
