package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// nodeCount is the number of the cluster's nodes. Each node has a zone of its own.
const nodeCount = 3

// cluster describes a running cluster, as the state directory has it (cluster.json).
type cluster struct {
	// Machine is the machine's init process.
	Machine processID
	Nodes   []node

	dir      string
	programs string
}

// node is a node of the cluster.
type node struct {
	Name   string
	Number int
	// Init is the node's init process, and Cgroups what processes of the node move to.
	Init    processID
	Cgroups []string
	// Proxy is the process of the proxy, and Contender which one it is.
	Proxy     processID
	Contender string
}

func (c *cluster) machine() place { return place{name: "machine", init: c.Machine} }

func (n node) place() place { return place{name: n.Name, init: n.Init, cgroups: n.Cgroups} }

func (c *cluster) logs() string { return filepath.Join(c.dir, "logs") }

// program is a program of Kubernetes.
func (c *cluster) program(name string, args ...string) *exec.Cmd {
	return program(filepath.Join(c.programs, name), args...)
}

const stateFile = "cluster.json"

func (c *cluster) save() error {
	text, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return err
	}
	part := filepath.Join(c.dir, "."+stateFile)
	return errors.Join(os.WriteFile(part, text, 0o600), os.Rename(part, filepath.Join(c.dir, stateFile)))
}

func (o options) newCluster() *cluster { return &cluster{dir: o.state, programs: o.programs} }

// load returns the running cluster, with the directory of Kubernetes' programs.
func (o *options) load(ctx context.Context) (*cluster, error) {
	c, err := o.read()
	if errors.Is(err, fs.ErrNotExist) || err == nil && !c.Machine.alive() {
		return nil, errors.New("there is no cluster: e2e up makes one")
	}
	if err != nil {
		return nil, err
	}
	if err := o.complete(ctx); err != nil {
		return nil, err
	}
	c.programs = o.programs
	return c, nil
}

func (o options) read() (*cluster, error) {
	c := o.newCluster()
	text, err := os.ReadFile(filepath.Join(o.state, stateFile))
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(text, c)
}

// lock makes others wait, or rather fail, while a command makes or removes the cluster.
func (o options) lock() (unlock func(), err error) {
	file, err := os.OpenFile(o.state+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("another e2e makes or removes the cluster in %s: %w", o.state, err)
	}
	return func() {
		os.Remove(file.Name())
		file.Close()
	}, nil
}

// up makes a cluster that stays.
func (o options) up(ctx context.Context) error {
	unlock, err := o.lock()
	if err != nil {
		return err
	}
	defer unlock()
	c, err := o.make(ctx, 0)
	if err != nil {
		return err
	}
	progress("the cluster is up: e2e exec kubectl get nodes; logs are in %s", c.logs())
	return nil
}

// make makes the cluster. With a death signal it ends with this process. If it fails, it removes what it made.
func (o options) make(ctx context.Context, death syscall.Signal) (*cluster, error) {
	if err := o.complete(ctx); err != nil {
		return nil, err
	}
	if err := o.require(); err != nil {
		return nil, err
	}
	if err := o.remove(); err != nil {
		return nil, fmt.Errorf("what an earlier cluster left: %w", err)
	}
	images, err := o.makeImages(ctx)
	if err != nil {
		return nil, err
	}
	c := o.newCluster()
	if err := c.build(ctx, o, images, death); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, errors.Join(err, o.removeBut("logs"))
	}
	return c, nil
}

func (c *cluster) build(ctx context.Context, o options, images []image, death syscall.Signal) error {
	if err := os.MkdirAll(c.logs(), 0o755); err != nil {
		return err
	}
	if err := errors.Join(c.startMachine(death), c.save()); err != nil {
		return err
	}
	for i := range nodeCount {
		n, err := c.startNode(i + 1)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, n)
	}
	if err := c.save(); err != nil {
		return err
	}
	if err := joinMachine(c.machine()); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := joinNode(c, n); err != nil {
			return err
		}
	}
	progress("control plane")
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	progress("nodes")
	if err := c.startNodes(ctx, images); err != nil {
		return err
	}
	if err := c.setProxy(ctx, o, o.proxy); err != nil {
		return err
	}
	return c.startAddons(ctx)
}

// startMachine starts the init process of the machine.
func (c *cluster) startMachine(death syscall.Signal) error {
	log, err := os.Create(filepath.Join(c.logs(), "machine-init.log")) // it may outlive this process's terminal
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{machineInit}, Dir: "/", Stderr: log, SysProcAttr: &syscall.SysProcAttr{
		Cloneflags: ownNamespaces,
		Setsid:     true, Pdeathsig: death,
	}}
	started, err := startInit(cmd, cmd.Start)
	c.Machine = started
	return err
}

// startNode starts the init process of a node, inside the machine.
func (c *cluster) startNode(number int) (node, error) {
	n := node{Name: fmt.Sprintf("node-%d", number), Number: number}
	all, err := hierarchies()
	if err != nil {
		return n, err
	}
	for _, h := range all {
		if err := h.make(n.Name); err != nil {
			return n, err
		}
		n.Cgroups = append(n.Cgroups, h.dir(n.Name))
	}
	dir := c.nodeDir(n)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return n, err
	}
	log, err := os.Create(filepath.Join(c.logs(), n.Name+"-init.log"))
	if err != nil {
		return n, err
	}
	defer log.Close()
	cmd := ownProgram(nodeStart, append([]string{n.Name, dir}, n.Cgroups...)...)
	cmd.Stderr = log
	if _, err := startInit(cmd, func() error { return c.machine().start(cmd) }); err != nil {
		return n, err
	}
	if all[0].v2() {
		n.Cgroups = []string{filepath.Join(all[0].dir(n.Name), "init")}
	}
	// So far it is the cgroup's only process.
	members, err := os.ReadFile(filepath.Join(n.Cgroups[0], "cgroup.procs"))
	if err != nil {
		return n, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(members)))
	if err != nil {
		return n, fmt.Errorf("%s: its init process: %w", n.Name, err)
	}
	n.Init, err = identify(pid)
	return n, err
}

func (c *cluster) nodeDir(n node) string { return filepath.Join(c.dir, n.Name) }

// startInit starts an init process, and waits until it is ready.
func startInit(cmd *exec.Cmd, start func() error) (processID, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return processID{}, err
	}
	if err := start(); err != nil {
		return processID{}, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != ready {
		return processID{}, fmt.Errorf("%s: %w", cmd.Args[0], errors.Join(err, cmd.Wait(), errors.New("see the logs")))
	}
	id, _ := identify(cmd.Process.Pid) // one that only starts the init process may have ended
	go func() { _ = cmd.Wait() }()
	return id, nil
}

// down removes the cluster and what one has left.
func (o options) down() error {
	unlock, err := o.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return o.remove()
}

func (o options) remove() error {
	if err := o.removeBut(""); err != nil {
		return err
	}
	return os.RemoveAll(o.state)
}

// removeBut removes all but one entry of the state directory.
func (o options) removeBut(kept string) error {
	c, err := o.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		progress("%s: %v: whatever it named is looked for by its cgroups", stateFile, err)
	}
	for _, n := range c.Nodes {
		n.Init.signal(syscall.SIGKILL)
	}
	c.Machine.signal(syscall.SIGKILL)
	if err := killMembers(); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); c.Machine.alive() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	if err := removeCgroups(); err != nil {
		return err
	}
	entries, err := os.ReadDir(o.state)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.Name() == kept {
			continue
		}
		if err := os.RemoveAll(filepath.Join(o.state, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
