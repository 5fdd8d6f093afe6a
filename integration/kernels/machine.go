package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nftproxy/nftproxy/integration/kernels/internal/protocol"
)

// A machine is one that qemu emulates.
type machine struct {
	kernel    string
	initramfs string
	log       string // file for all that the console says
	verbose   bool   // say it here too
}

// A result is what one kernel's tests came to.
type result struct {
	version string // of Linux, as asked for
	release string
	boot    time.Duration // until the first process runs
	total   time.Duration
	suites  []suiteResult
}

type suiteResult struct {
	name            string
	ended           bool
	status          string // of the test binary: ok, or what it ended with
	took            time.Duration
	passed          int
	skipped, failed []string // tests, as go test names them, not subtests
}

// run boots the machine and reads its console until it turns itself off.
func (m machine) run(ctx context.Context) (result, error) {
	log, err := os.Create(m.log)
	if err != nil {
		return result{}, err
	}
	defer log.Close()
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "6G", "-nographic", "-no-reboot", "-nic", "none", "-monitor", "none", "-serial", "stdio", "-vga", "none",
		"-kernel", m.kernel, "-initrd", m.initramfs, "-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable")
	qemu.Stderr = os.Stderr
	console, err := qemu.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	if err := qemu.Start(); err != nil {
		return result{}, fmt.Errorf("%w: apt-get install qemu-system-x86", err)
	}
	var text io.Writer = log
	if m.verbose {
		text = io.MultiWriter(log, os.Stdout)
	}
	r, err := readConsole(io.TeeReader(console, text), start)
	r.total = time.Since(start)
	if err = errors.Join(err, qemu.Wait()); err != nil {
		return r, fmt.Errorf("%w; the console is in %s", err, m.log)
	}
	return r, nil
}

// readConsole takes the results out of what the machine says.
func readConsole(console io.Reader, start time.Time) (result, error) {
	var r result
	done := false
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if _, message, ours := strings.Cut(line, protocol.Mark); ours { // qemu's firmware begins the first line
			done = r.message(message, start) || done
		} else if n := len(r.suites); n > 0 && !r.suites[n-1].ended {
			r.suites[n-1].line(line)
		}
	}
	if !done {
		return r, errors.New("the machine stopped before all tests had run")
	}
	return r, lines.Err()
}

// message reads a line of package protocol, and says whether it was the last one.
func (r *result) message(text string, start time.Time) bool {
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "begin":
		if r.boot == 0 {
			r.boot = time.Since(start)
		}
		r.suites = append(r.suites, suiteResult{name: rest})
	case "end":
		s := &r.suites[len(r.suites)-1]
		fields := strings.Fields(strings.TrimPrefix(rest, s.name))
		s.ended = true
		if len(fields) == 2 {
			s.status = fields[0]
			seconds, _ := strconv.ParseFloat(fields[1], 64)
			s.took = time.Duration(seconds * float64(time.Second))
		}
		fmt.Printf("  %-14s %s, %d passed, %d skipped, %d failed, %v\n", s.name, s.status, s.passed, len(s.skipped), len(s.failed), s.took.Round(time.Second))
		for _, name := range s.failed {
			fmt.Println("    failed:", name)
		}
	case "done":
		return true
	}
	return false
}

// line reads a line of go test -v.
func (s *suiteResult) line(line string) {
	verdict, rest, found := strings.Cut(line, ": ")
	name, _, _ := strings.Cut(rest, " ")
	switch {
	case !found:
	case verdict == "--- PASS":
		s.passed++
	case verdict == "--- SKIP":
		s.skipped = append(s.skipped, name)
	case verdict == "--- FAIL":
		s.failed = append(s.failed, name)
	}
}
