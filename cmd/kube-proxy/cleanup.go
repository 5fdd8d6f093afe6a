package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/leftovers"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/proxy"
)

// cleanup removes the rules of every mode of kube-proxy, and logs them. Leftovers that it cannot remove are an error,
// and so is a running proxy that adds the tables again. With a service-proxy-name it removes the tables of this name
// alone.
func cleanup(ctx context.Context, serviceProxyName string, remover leftovers.Remover) error {
	logger := klog.FromContext(ctx)
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	tables, err := proxy.Present(ctx, conn, serviceProxyName)
	if err != nil {
		return err
	}
	if err := proxy.Cleanup(ctx, conn, serviceProxyName); err != nil {
		return err
	}
	for _, table := range tables {
		logger.Info("Removed", "table", table)
	}
	removed := len(tables)
	if serviceProxyName == "" {
		var more int
		more, err = cleanupLeftovers(ctx, remover)
		removed += more
	}
	if removed == 0 && err == nil {
		logger.Info("Nothing to remove")
	}
	if len(tables) == 0 {
		return err
	}
	return errors.Join(err, addedAgain(ctx, conn, serviceProxyName))
}

// cleanupLeftovers removes the leftovers of kube-proxy's other modes, and ends connections of the mode ipvs. It returns
// the number of removed objects, and an error if any remain.
func cleanupLeftovers(ctx context.Context, remover leftovers.Remover) (removed int, err error) {
	logger := klog.FromContext(ctx)
	remover.DrainTimeout = 0
	removal, err := remover.Remove(ctx)
	if n := removal.Removed.Count; n > 0 {
		logger.Info("Removed what the modes iptables and ipvs left, and the rules that led there",
			"count", n, "example", removal.Removed.First[0])
	}
	if removal.Ended > 0 {
		logger.Info("Ended connections of the mode ipvs", "connections", removal.Ended)
	}
	if n := removal.Kept.Count; n > 0 {
		logger.Info("Kept what another program uses", "count", n, "names", removal.Kept.First)
	}
	return removal.Removed.Count, errors.Join(err, remaining(ctx))
}

// returnTime bounds the wait for removed tables to come back. A proxy adds them again within about a second.
const returnTime = 3 * time.Second

// addedAgain returns an error if a running proxy adds the tables again.
func addedAgain(ctx context.Context, conn *nft.Conn, serviceProxyName string) error {
	waiting, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	look := time.NewTicker(proxy.CheckInterval)
	defer look.Stop()
	for {
		select {
		case <-waiting.Done():
			return ctx.Err()
		case <-look.C:
		}
		tables, err := proxy.Present(ctx, conn, serviceProxyName)
		if err != nil {
			return err
		}
		if len(tables) > 0 {
			return fmt.Errorf("a proxy runs on this node: it has added again %s; stop it, then clean up", strings.Join(tables, " and "))
		}
	}
}

// remaining returns an error that names the leftovers that cleanup cannot remove.
func remaining(ctx context.Context) error {
	found, err := leftovers.Find(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("Cannot look for everything that kube-proxy's other modes may have left behind",
			"reason", err.Error())
	}
	var left []string
	for _, l := range found {
		left = append(left, fmt.Sprintf("%s: %s (%d in all)", l.Kind, l.Example, l.Count))
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("cannot remove what other modes of kube-proxy left, %s; run Kubernetes' own kube-proxy --cleanup from its image, or restart the node", strings.Join(left, ", "))
}
