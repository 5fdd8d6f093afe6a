package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/nftproxy/nftproxy/internal/testkit/lab"
)

// proxyArgs is the command line that the demo shows, without where Services come from.
var proxyArgs = []string{
	"--hostname-override", lab.NodeName,
	"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48",
	"--proxy-mode", "nftables",
	"-v", "1",
}

// proxy is a running kube-proxy.
type proxy struct {
	cmd *exec.Cmd
	log *os.File
	// exited is closed when it has ended, with err.
	exited chan struct{}
	err    error
}

// startProxy starts kube-proxy on the node. What it logs goes to a file of its own.
func startProxy(node *lab.Host, program, logPath string, args ...string) (*proxy, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, err
	}
	p := &proxy{log: log, exited: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// A group of its own spares it the terminal's interrupt: the demo ends it in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := node.Do(p.cmd.Start); err != nil {
		log.Close()
		return nil, fmt.Errorf("start kube-proxy: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// alive returns why the proxy has ended, if it has.
func (p *proxy) alive() error {
	select {
	case <-p.exited:
		return fmt.Errorf("kube-proxy ended (%v) and said last: %s", p.err, p.lastWords())
	default:
		return nil
	}
}

// stop ends the proxy with SIGTERM and waits until it is gone.
func (p *proxy) stop() error {
	defer p.log.Close()
	if err := p.alive(); err != nil {
		return err
	}
	// If it ends right now, the wait below finds that out.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return errors.New("kube-proxy did not end within 10 s of SIGTERM")
	}
	if p.err != nil {
		return fmt.Errorf("kube-proxy ended with %w and said last: %s", p.err, p.lastWords())
	}
	return nil
}

// kill ends the proxy with SIGKILL: it has no time to do anything.
func (p *proxy) kill() error {
	defer p.log.Close()
	if err := p.alive(); err != nil {
		return err
	}
	_ = p.cmd.Process.Kill() // if it ends right now, that is just as well
	<-p.exited
	return nil
}

// lastWords is the last line that the proxy logged.
func (p *proxy) lastWords() string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// runOnNode runs a program there to its end, and returns what it printed.
func runOnNode(ctx context.Context, node *lab.Host, program string, args ...string) ([]byte, error) {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	err := node.Do(func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		return cmd.Wait()
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(output.Bytes()))
	}
	return output.Bytes(), nil
}
