package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nftproxy/nftproxy/internal/ruledump/verb"
	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"github.com/nftproxy/nftproxy/internal/testkit/lab"
	"golang.org/x/sys/unix"
)

func TestRuledumpTop(t *testing.T) {
	t.Parallel()
	t.Run("has what conntrack's events tell", func(t *testing.T) {
		t.Parallel()
		x := newTalks(t)
		testTopRates(t, x.Node, "shop/web", 0, func() error {
			c, err := x.Outside.DialContext(t.Context(), "tcp", "192.0.2.10:80")
			if err != nil {
				return err
			}
			return c.Close()
		})
	})
	t.Run("has what the rules count", func(t *testing.T) {
		t.Parallel()
		c := newCounting(t)
		port := 20_000 // each its own: a client that has the port of one before is the same connection to conntrack
		testTopRates(t, c.lab.Node, "shop/remote", 1, func() error {
			return c.lab.Client.Do(func() error {
				port++
				conn, err := net.DialUDP("udp4", &net.UDPAddr{Port: port}, &net.UDPAddr{IP: net.IPv4(10, 96, 0, 12), Port: 53})
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write([]byte(echoText))
				return err
			})
		})
	})
	t.Run("draws on a terminal", testTopOnTerminal)
}

// testTopRates offers 100 connections a second, each with that many packets, and adds up what top prints. The sums are
// exact: a connection counts in one round, whichever that is.
func testTopRates(t *testing.T, node *lab.Host, service string, packets int, connect func() error) {
	const offered = 100
	p := lab.Start(t, node, "ruledump", "top", "-o=json", service)
	p.Says(t, `"kind":"Rates"`)
	var made int
	begun := time.Now()
	for tick := time.Tick(time.Second / offered); time.Since(begun) < 5*time.Second; <-tick {
		if err := connect(); err != nil {
			t.Fatal(err)
		}
		made++
	}
	type sums struct {
		connections, packets, bytes float64
	}
	read := func() (total sums, err error) {
		var last time.Time
		for line := range strings.Lines(lab.Abandoned.ReplaceAllString(p.Output(), "")) {
			var r verb.Rates
			if !strings.HasSuffix(line, "\n") {
				break
			}
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			if r.Problem != "" {
				t.Errorf("a round has a problem: %s", r.Problem)
			}
			seconds := r.Time.Sub(last).Seconds()
			if last = r.Time; len(r.Services) == 0 {
				continue
			}
			s := r.Services[0]
			if s.Namespace+"/"+s.Service != service || len(r.Services) > 1 {
				t.Fatalf("%s", line)
			}
			total.connections += s.Connections * seconds
			total.packets += s.Packets * seconds
			total.bytes += s.Bytes * seconds
		}
		// A round's time and that of its reading differ by some milliseconds.
		if math.Abs(total.connections-float64(made)) > 0.01*float64(made) {
			err = fmt.Errorf("%.1f connections of %d", total.connections, made)
		}
		return total, err
	}
	took := time.Since(begun)
	await.Until(t, "all connections are in the rounds", func() error { _, err := read(); return err })
	total, _ := read()
	if want := float64(packets * made); math.Abs(total.packets-want) > 0.01*want || math.Abs(total.bytes-want*float64(echoBytes)) > 0.01*want*float64(echoBytes) {
		t.Errorf("%.1f packets and %.1f bytes, want %v and %v", total.packets, total.bytes, want, want*float64(echoBytes))
	}
	t.Logf("%.1f connections a second were offered, %.1f read", float64(made)/took.Seconds(), total.connections/took.Seconds())
	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
}

// terminal is a pseudoterminal with a program in it.
type terminal struct {
	*os.File
	output await.Buffer
}

// startOnTerminal runs a command on a terminal of 100 columns and 12 rows.
func startOnTerminal(t *testing.T, h *lab.Host, args ...string) (*terminal, *lab.Process) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 100})
	}
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	cmd := exec.Command(lab.Binary(t, "ruledump"), args...)
	p := lab.NewProcess(t, cmd)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = theirs, theirs, theirs, append(os.Environ(), "TERM=xterm")
	if err := h.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	term := &terminal{File: ours}
	go func() { _, _ = io.Copy(&term.output, ours) }()
	return term, p
}

// shows waits until the last whole picture has all these texts.
func (x *terminal) shows(t *testing.T, texts ...string) {
	t.Helper()
	await.Until(t, "the terminal shows "+strings.Join(texts, ", "), func() error {
		picture := x.output.String()
		picture = picture[:max(0, strings.LastIndex(picture, "\x1b[J"))]
		picture = picture[strings.LastIndex(picture, "\x1b[H")+1:]
		for _, text := range texts {
			if !strings.Contains(picture, text) {
				return fmt.Errorf("no %q in\n%s", text, picture)
			}
		}
		return nil
	})
}

func (x *terminal) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := x.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

func testTopOnTerminal(t *testing.T) {
	t.Parallel()
	x := newTalks(t)
	term, p := startOnTerminal(t, x.Node, "top")
	ctx, stop := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	defer dialing.Wait()
	defer stop()
	dialing.Go(func() {
		for tick := time.Tick(20 * time.Millisecond); ctx.Err() == nil; <-tick {
			if c, err := x.Outside.DialContext(ctx, "tcp", "192.0.2.10:80"); err == nil {
				_ = c.Close()
			}
		}
	})
	term.shows(t, "sorted by connections", "1 Service ports with traffic, by conntrack's events", "\x1b[1mSERVICE PORT", "shop/web:http", "█")
	term.types(t, "n")
	term.shows(t, "sorted by name")
	term.types(t, "/api")
	term.shows(t, "/api (0, Esc for all)")
	term.types(t, "\x1b")
	term.shows(t, "/ filter", "shop/web:http")
	if err := unix.IoctlSetWinsize(int(term.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 30}); err != nil {
		t.Fatal(err)
	}
	term.types(t, "\x1b[A") // an arrow, which says nothing
	term.shows(t, "sorted by name; c, p, b, r, n \x1b[K")
	term.types(t, "q")
	if err := p.Wait(); err != nil {
		t.Errorf("ends with %v", err)
	}
	await.Until(t, "the terminal is as before", func() error {
		if text := lab.Abandoned.ReplaceAllString(term.output.String(), ""); !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l") || !strings.HasSuffix(text, "\x1b[?25h\x1b[?1049l") {
			return fmt.Errorf("%q", text)
		}
		return nil
	})
}

// Text that does not fit the terminal waits for a key after each screen. The terminal is as before in the end.
func TestRuledumpPages(t *testing.T) {
	t.Parallel()
	l := lab.ForTest(t)
	replace(t, lab.Conn(t, l.Node), exampleTables(t))
	for _, end := range []struct {
		name string
		do   func(*terminal, *lab.Process) error
	}{
		{"q", func(term *terminal, _ *lab.Process) error { _, err := term.WriteString("q"); return err }},
		{"Ctrl-C", func(term *terminal, _ *lab.Process) error { _, err := term.WriteString("\x03"); return err }},
		{"SIGTERM", func(_ *terminal, p *lab.Process) error { return p.Cmd.Process.Signal(unix.SIGTERM) }},
	} {
		t.Run(end.name, func(t *testing.T) {
			term, p := startOnTerminal(t, l.Node, "live")
			lines := strings.Count(runRuledump(t, l.Node, "live"), "\n")
			says := func(read int) {
				t.Helper()
				question := fmt.Sprintf("-- %d of %d lines: Space, Enter or q --", read, lines)
				await.Until(t, question, func() error {
					if text := term.output.String(); !strings.HasSuffix(text, question) {
						return fmt.Errorf("%q", text)
					}
					return nil
				})
			}
			says(11) // of 12 rows, one is for the question
			term.types(t, "?\r")
			says(12)
			term.types(t, " ")
			says(22) // one line takes two rows
			before, err := unix.IoctlGetTermios(int(term.Fd()), unix.TCGETS)
			if err != nil || before.Lflag&unix.ICANON != 0 {
				t.Errorf("keys do not come at once: %+v, %v", before, err)
			}
			if err := end.do(term, p); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				t.Errorf("ends with %v", err)
			}
			if after, err := unix.IoctlGetTermios(int(term.Fd()), unix.TCGETS); err != nil || after.Lflag&unix.ICANON == 0 {
				t.Errorf("the terminal is left without lines: %+v, %v", after, err)
			}
		})
	}
}
