package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/cpuset"
)

// maxScaled bounds the product of maxPerCore and the cores, as in kube-proxy since v1.37, because the table takes
// memory.
const maxScaled = 1 << 20

const hashSizeFile = "sys/module/nf_conntrack/parameters/hashsize"

// SetConntrack sets the parameters of connection tracking from the configuration. A field that is
// 0, nil or false leaves its parameter alone.
//
//   - nf_conntrack_max becomes the larger of min and maxPerCore × the node's cores, where that product counts up to
//     1,048,576. kube-proxy v1.37 ignores min where the product exceeds that, and also makes a larger table smaller.
//   - The table's hash table gets a quarter as many buckets, if it has fewer. This needs the initial network namespace
//     and a writable /sys. A failure is only logged, because lookups only get slower.
//   - Timeouts are set in whole seconds, at least one.
//
// The error names each sysctl that is wrong and cannot be set, and the remedy. A sysctl in missing does not exist
// before the kernel loads the module nf_conntrack, as rules with connection tracking make it do. See AwaitConntrack.
func (t Tree) SetConntrack(ctx context.Context, config *kubeproxyv1alpha1.KubeProxyConntrackConfiguration) (missing []string, err error) {
	logger := klog.FromContext(ctx)
	entries := maxEntries(config, t.cores())
	var failed []string
	for _, s := range conntrackSettings(config, entries) {
		err := t.set(logger, s)
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, s.name)
		} else if err != nil {
			failed = append(failed, err.Error())
		}
	}
	if len(failed) > 0 {
		return missing, errors.New(strings.Join(failed, "; "))
	}
	if len(missing) > 0 {
		return missing, nil
	}
	if t.readOnly() {
		logger.Info("Sysctls are read-only here, but right as they are")
	}
	if entries > 0 {
		t.growHashTable(logger, entries/4)
	}
	return nil, nil
}

// ConntrackChanges returns what SetConntrack would change, such as "net.netfilter.nf_conntrack_max from 65536 to
// 131072". It leaves out sysctls that do not exist yet.
func (t Tree) ConntrackChanges(config *kubeproxyv1alpha1.KubeProxyConntrackConfiguration) (changes []string) {
	for _, s := range conntrackSettings(config, maxEntries(config, t.cores())) {
		if current, err := t.readInt(s.file()); err == nil && !s.holds(current) {
			changes = append(changes, fmt.Sprintf("%s from %d to %d", s.name, current, s.value))
		}
	}
	return changes
}

// The first and the longest wait between two tries of AwaitConntrack.
const (
	minAwait = 100 * time.Millisecond
	maxAwait = time.Minute
)

// AwaitConntrack calls SetConntrack, with growing waits, until every sysctl exists. It logs sysctls that cannot be set,
// and sysctls that have been missing for a minute.
func (t Tree) AwaitConntrack(ctx context.Context, config *kubeproxyv1alpha1.KubeProxyConntrackConfiguration) {
	logger := klog.FromContext(ctx)
	waits := backoff.ExponentialBackOff{InitialInterval: minAwait, Multiplier: 2, MaxInterval: maxAwait}
	for wait := waits.NextBackOff(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		missing, err := t.SetConntrack(ctx, config)
		last := wait
		wait = waits.NextBackOff()
		switch {
		case err != nil:
			logger.Error(err, "Cannot set sysctls that exist now; connections are tracked with the values that they have")
			return
		case len(missing) == 0:
			return
		case last < maxAwait && wait == maxAwait:
			logger.Error(nil, "Sysctls still do not exist: load the kernel module nf_conntrack; looking again each minute",
				"sysctls", missing)
		}
	}
}

func conntrackSettings(config *kubeproxyv1alpha1.KubeProxyConntrackConfiguration, entries int) []setting {
	var settings []setting
	if entries > 0 {
		settings = append(settings, setting{"net.netfilter.nf_conntrack_max", entries, true, "conntrack.maxPerCore to 0"})
	}
	for _, timeout := range []struct {
		name, field string
		value       *metav1.Duration
	}{
		{"tcp_timeout_established", "tcpEstablishedTimeout", config.TCPEstablishedTimeout},
		{"tcp_timeout_close_wait", "tcpCloseWaitTimeout", config.TCPCloseWaitTimeout},
		{"udp_timeout", "udpTimeout", &config.UDPTimeout},
		{"udp_timeout_stream", "udpStreamTimeout", &config.UDPStreamTimeout},
	} {
		if timeout.value != nil && timeout.value.Duration > 0 {
			seconds := max(1, int(timeout.value.Duration/time.Second))
			settings = append(settings, setting{"net.netfilter.nf_conntrack_" + timeout.name, seconds, false, "conntrack." + timeout.field + " to 0s"})
		}
	}
	if config.TCPBeLiberal {
		settings = append(settings, setting{"net.netfilter.nf_conntrack_tcp_be_liberal", 1, false, "conntrack.tcpBeLiberal to false"})
	}
	return settings
}

// maxEntries returns the least value of nf_conntrack_max; 0 for none. Without maxPerCore, min does not count.
func maxEntries(config *kubeproxyv1alpha1.KubeProxyConntrackConfiguration, cores int) int {
	if config.MaxPerCore == nil || *config.MaxPerCore <= 0 {
		return 0
	}
	entries := min(int(*config.MaxPerCore)*cores, maxScaled)
	if config.Min != nil {
		entries = max(entries, int(*config.Min))
	}
	return entries
}

func (t Tree) growHashTable(logger klog.Logger, buckets int) {
	current, err := t.readInt(hashSizeFile)
	if err == nil && current >= buckets {
		return
	}
	if err == nil {
		err = t.writeInt(hashSizeFile, buckets)
	}
	if err != nil {
		logger.Error(err, "Cannot enlarge the hash table of connection tracking; lookups get slower as it fills",
			"buckets", current, "wanted", buckets)
		return
	}
	logger.Info("Enlarged the hash table of connection tracking", "buckets", buckets, "before", current)
}

// cores returns the number of the node's cores that are online. The process may be pinned to fewer.
func (t Tree) cores() int {
	if text, err := t.read("sys/devices/system/cpu/online"); err == nil {
		if online, err := cpuset.Parse(text); err == nil && !online.IsEmpty() {
			return online.Size()
		}
	}
	return runtime.NumCPU()
}
