package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// exec runs a program in the machine, or in a node, with this terminal.
func (o options) exec(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: e2e exec [--node NAME] PROGRAM [ARGUMENT...]")
	}
	c, err := o.load(ctx)
	if err != nil {
		return err
	}
	where := c.machine()
	if o.node != "" {
		if where, err = c.placeOf(o.node); err != nil {
			return err
		}
	}
	path := args[0]
	if own := filepath.Join(o.programs, path); !filepath.IsAbs(path) && isFile(own) {
		path = own
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig("admin"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := where.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (c *cluster) placeOf(name string) (place, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n.place(), nil
		}
	}
	return place{}, fmt.Errorf("there is no node %q", name)
}
