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
)

// A machine is one that qemu emulates.
type machine struct {
	kernel     string
	initramfs  string
	parameters string   // for the kernel's command line, besides those that every machine gets
	log        string   // file for all that the console says
	verbose    bool     // say it here too
	prefix     []string // the program that starts qemu, if any
}

// run boots the machine and reads its console until it turns itself off.
func (m machine) run(ctx context.Context) (result, error) {
	log, err := os.Create(m.log)
	if err != nil {
		return result{}, err
	}
	defer log.Close()
	// What Linux measures and checks of timers at boot goes wrong on a busy host: clocks then run several times too fast.
	qemu := prefixed(ctx, m.prefix, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "6G", "-nographic", "-no-reboot", "-nic", "none", "-monitor", "none", "-serial", "stdio", "-vga", "none",
		"-kernel", m.kernel, "-initrd", m.initramfs, "-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check clocksource=hpet "+m.parameters)
	qemu.Stderr = os.Stderr
	console, err := qemu.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := qemu.Start(); err != nil {
		return result{}, fmt.Errorf("%w: apt-get install qemu-system-x86", err)
	}
	var text io.Writer = log
	if m.verbose {
		text = io.MultiWriter(log, os.Stdout)
	}
	r, err := readConsole(io.TeeReader(console, text))
	if err = errors.Join(err, qemu.Wait()); err != nil {
		return r, fmt.Errorf("%w; the console is in %s", err, m.log)
	}
	return r, nil
}

// prefixed is a command that another program starts, such as nice.
func prefixed(ctx context.Context, prefix []string, args ...string) *exec.Cmd {
	args = append(prefix[:len(prefix):len(prefix)], args...)
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// readConsole takes the result out of what the machine says.
func readConsole(console io.Reader) (result, error) {
	var r result
	var begun, ended bool
	var start time.Time // of the first character, which qemu's firmware writes: before it, the prefix may have waited
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if start.IsZero() {
			start = time.Now()
		}
		line := strings.TrimRight(lines.Text(), "\r")
		_, message, ours := strings.Cut(line, mark) // qemu's firmware begins the first line
		switch {
		case ours && message == "begin":
			begun, r.Boot = true, time.Since(start)
		case ours:
			ended = r.end(message)
		case begun && !ended:
			r.line(line)
		}
	}
	if !ended {
		return r, errors.New("the machine stopped before all tests had run")
	}
	return r, lines.Err()
}

// end reads protocol's message of that name.
func (r *result) end(message string) bool {
	fields := strings.Fields(message)
	if len(fields) != 3 || fields[0] != "end" {
		return false
	}
	seconds, err := strconv.ParseFloat(fields[2], 64)
	r.Status, r.Took = fields[1], time.Duration(seconds*float64(time.Second))
	return err == nil
}

// line reads a line of go test -v. A test that passes although subtests were skipped
// counts as passed, and they as skipped.
func (r *result) line(line string) {
	verdict, rest, found := strings.Cut(line, ": ")
	name, _, _ := strings.Cut(rest, " ")
	if !found {
		return
	}
	switch strings.TrimSpace(verdict) {
	case "--- PASS":
		if !strings.Contains(name, "/") {
			r.Passed++
		}
	case "--- SKIP":
		r.Skipped = append(r.Skipped, name)
	case "--- FAIL":
		r.Failed = append(r.Failed, name)
	}
}
