package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

// stopGrace is how long a sync under way may take to end when the proxy stops. Kubernetes kills it
// after 30 s. If the kernel is carrying out a commit then, the end of the process makes it undo all of
// it (nfnetlink gives up a batch at a fatal signal). The rules stay as before that sync, and the next
// process has to make the whole commit again.
const stopGrace = 5 * time.Second

// await returns when all parts have ended, or stopGrace after ctx, that of the group, has. The error is that of
// the first part that failed; there is none if the parts ended because parent did.
func await(parent, ctx context.Context, group *errgroup.Group) error {
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(stopGrace):
	}
	klog.FromContext(ctx).Info("Leaving a sync that is still under way; the kernel undoes a commit that it has not finished", "waited", stopGrace.String())
	if parent.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// unlessStopped returns the error with which the process ends. If a signal interrupted the start, that is none.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}
