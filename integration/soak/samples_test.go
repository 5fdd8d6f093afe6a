package soak

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"github.com/prometheus/procfs"
)

const metricsAddress = "127.0.0.1:10249"

// samples has samples of the resources that the proxy's process uses.
type samples struct {
	host *lab.Host

	mu    sync.Mutex
	pid   int
	taken []sample
}

// A sample is one look at the process.
type sample struct {
	at          time.Time
	pid         int
	memory      float64 // resident set, MB
	descriptors float64
	goroutines  float64
}

// follow begins to look at another process.
func (s *samples) follow(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pid = pid
}

// take looks at the process once a second.
func (s *samples) take(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.mu.Lock()
			pid := s.pid
			s.mu.Unlock()
			one, err := s.look(ctx, pid)
			if err != nil {
				continue // It is being restarted.
			}
			s.mu.Lock()
			s.taken = append(s.taken, one)
			s.mu.Unlock()
		}
	}
}

func (s *samples) look(ctx context.Context, pid int) (sample, error) {
	one := sample{at: time.Now(), pid: pid}
	var err error
	if one.memory, err = residentMB(pid); err != nil {
		return one, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return one, err
	}
	one.descriptors = float64(len(open))
	one.goroutines, err = s.metric(ctx, "go_goroutines")
	return one, err
}

func residentMB(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return float64(status.VmRSS) / (1 << 20), err
}

func (s *samples) metric(ctx context.Context, name string) (float64, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.host.DialContext}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			_, _ = io.Copy(io.Discard, response.Body)
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// quantities must stay flat. A little growth is allowed: the memory of a Go program goes up and down with its garbage
// collector, and connections to the API server come and go.
var quantities = []struct {
	name     string
	of       func(sample) float64
	share    float64 // of the mean
	absolute float64 // and that much besides
}{
	{"resident memory (MB)", func(s sample) float64 { return s.memory }, 0.1, 8},
	{"file descriptors", func(s sample) float64 { return s.descriptors }, 0, 4},
	{"goroutines", func(s sample) float64 { return s.goroutines }, 0, 8},
}

// judge fits a line to each quantity since then. From the first sample to the last it must not rise by more than
// allowed, and three times the line's own uncertainty: in the minute of a short run goroutines come and go with
// connections to the API server, and their scatter alone tilts the line. In a long run next to nothing is added.
func (s *samples) judge(t *testing.T, since time.Time) {
	t.Helper()
	x, chosen := s.since(since)
	if len(x) < 10 {
		t.Errorf("only %d samples of the process since %v; is %s answered?", len(x), since, metricsAddress)
		return
	}
	for _, q := range quantities {
		y := make([]float64, len(chosen))
		for i, one := range chosen {
			y[i] = q.of(one)
		}
		slope, mean, uncertainty := fit(x, y)
		span := x[len(x)-1] - x[0]
		rise, bound := slope*span, q.share*mean+q.absolute+3*uncertainty*span
		t.Logf("%s: mean %.1f, rise %+.1f in %.0f s, bound %.1f", q.name, mean, rise, span, bound)
		if rise > bound {
			t.Errorf("%s rose by %.1f in %.0f s, more than %.1f", q.name, rise, span, bound)
		}
	}
}

// since returns the samples of the last process from then on, and their times in seconds.
func (s *samples) since(then time.Time) (x []float64, chosen []sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.taken {
		if one.pid == s.pid && one.at.After(then) {
			x = append(x, one.at.Sub(then).Seconds())
			chosen = append(chosen, one)
		}
	}
	return x, chosen
}

// fit returns the slope of the line with the least squares, the mean, and the standard error of the slope.
func fit(x, y []float64) (slope, mean, uncertainty float64) {
	var meanX float64
	for i := range x {
		meanX += x[i] / float64(len(x))
		mean += y[i] / float64(len(y))
	}
	var xy, xx float64
	for i := range x {
		xy += (x[i] - meanX) * (y[i] - mean)
		xx += (x[i] - meanX) * (x[i] - meanX)
	}
	if xx == 0 || len(x) < 3 {
		return 0, mean, 0
	}
	slope = xy / xx
	var squares float64
	for i := range x {
		squares += math.Pow(y[i]-mean-slope*(x[i]-meanX), 2)
	}
	return slope, mean, math.Sqrt(squares / float64(len(x)-2) / xx)
}

func (s *samples) report() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var peak float64
	pids := map[int]bool{}
	for _, one := range s.taken {
		peak = math.Max(peak, one.memory)
		pids[one.pid] = true
	}
	return fmt.Sprintf("%d samples of %d processes, peak memory %.0f MB", len(s.taken), len(pids), peak)
}

func TestFit(t *testing.T) {
	for _, tt := range []struct {
		name                         string
		y                            []float64
		slope, mean, above, andBelow float64
	}{
		{"a line is certain", []float64{5, 7, 9, 11}, 2, 8, -1e-9, 1e-9},
		{"scatter is not", []float64{0, 4, 0, 4}, 0.8, 2, 1, 1.2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			slope, mean, uncertainty := fit([]float64{0, 1, 2, 3}, tt.y)
			if math.Abs(slope-tt.slope) > 1e-9 || mean != tt.mean || uncertainty < tt.above || uncertainty > tt.andBelow {
				t.Errorf("slope %v, mean %v, uncertainty %v; want %v, %v, %v to %v", slope, mean, uncertainty, tt.slope, tt.mean, tt.above, tt.andBelow)
			}
		})
	}
}
