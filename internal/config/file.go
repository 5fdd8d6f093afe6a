// Package config reads kube-proxy's configuration, of version v1alpha1 or v1alpha2, and turns it into the options of
// this module's libraries. Errors name the field, as the user calls it, and the remedy.
package config

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
)

// File is a configuration document.
type File struct {
	// Path is the file's path; empty if Parse read it.
	Path string
	// Config is valid, with defaults filled in.
	Config *v1alpha2.KubeProxyConfiguration
	// Warnings are about what in the document has no effect, leaves something open, or is missing; one line each.
	Warnings []string
	// KubeProxyMode is the mode in which Kubernetes' kube-proxy v1.37 runs the document: iptables, if a v1alpha1 document
	// names none.
	KubeProxyMode v1alpha2.Mode
	// NodePortAddresses are those that the document names: nil, if those in Config are a default.
	NodePortAddresses []string

	data []byte
	// rescan is the interval at which Watch reads the file without a notice.
	rescan time.Duration
}

// Load reads a configuration file. Errors name the file.
func Load(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	f, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	f.Path = path
	return f, nil
}

// Parse reads a KubeProxyConfiguration in YAML or JSON. Unknown and repeated fields are warnings in v1alpha1, as in
// kube-proxy, and errors in v1alpha2 unless configHardFail is false. CheckMode, not Parse, refuses other modes.
func Parse(data []byte) (*File, error) {
	document, repeated, err := toJSON(data)
	if err != nil {
		return nil, err
	}
	version, err := versionOf(document)
	if err != nil {
		return nil, err
	}
	f := &File{data: data, rescan: time.Minute, Warnings: repeated}
	var names Names
	if version == v1alpha2.APIVersion {
		err = f.readV1alpha2(document)
	} else {
		names, err = f.readV1alpha1(document)
	}
	if err != nil {
		return nil, err
	}
	f.NodePortAddresses = f.Config.NodePortAddresses
	v1alpha2.SetDefaults(f.Config)
	f.KubeProxyMode = cmp.Or(f.KubeProxyMode, f.Config.Mode)
	if err := Validate(f.Config, names); err != nil {
		return nil, err
	}
	f.Warnings = append(f.Warnings, Warnings(f.Config, names)...)
	return f, nil
}

// versionOf returns the apiVersion of a document of the right kind.
func versionOf(document []byte) (string, error) {
	header, _, err := decode[metav1.TypeMeta](document)
	if err != nil {
		return "", err
	}
	versions := []string{kubeproxyv1alpha1.SchemeGroupVersion.String(), v1alpha2.APIVersion}
	if header.Kind != v1alpha2.Kind || !slices.Contains(versions, header.APIVersion) {
		return "", fmt.Errorf("apiVersion %q, kind %q: must be %s, %s",
			header.APIVersion, header.Kind, strings.Join(versions, " or "), v1alpha2.Kind)
	}
	return header.APIVersion, nil
}

func (f *File) readV1alpha2(document []byte) error {
	c, unknown, err := decode[v1alpha2.KubeProxyConfiguration](document)
	if err != nil {
		return err
	}
	f.Config = c
	f.Warnings = append(f.Warnings, unknownFields(unknown, v1alpha2Names())...)
	if hardFail := c.ConfigHardFail; len(f.Warnings) > 0 && (hardFail == nil || *hardFail) {
		return errors.New(strings.Join(f.Warnings, "; "))
	}
	return nil
}

func (f *File) readV1alpha1(document []byte) (Names, error) {
	c, unknown, err := decode[kubeproxyv1alpha1.KubeProxyConfiguration](document)
	if err != nil {
		return nil, err
	}
	f.Warnings = append(f.Warnings, unknownFields(unknown, v1alpha1Names(""))...)
	f.dropGatedLogging(c)
	f.KubeProxyMode = cmp.Or(v1alpha2.Mode(c.Mode), v1alpha2.ModeIPTables)
	names := f.resolveMode(c)
	var losses []v1alpha2.Loss
	f.Config, losses = v1alpha2.FromV1alpha1(c)
	for _, loss := range losses {
		f.Warnings = append(f.Warnings, loss.String())
	}
	return names, nil
}

// kubeadmKubeconfig is the path that kubeadm writes into its ConfigMap kube-proxy.
const kubeadmKubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"

// resolveMode chooses the settings of a v1alpha1 document without a mode, and returns the names of its fields. To
// kube-proxy it means the mode iptables, so the settings of that section apply.
func (f *File) resolveMode(c *kubeproxyv1alpha1.KubeProxyConfiguration) Names {
	if chosenByKubeadm(c) {
		f.Warnings = append(f.Warnings, `mode: running as nftables; kubeadm v1.37 writes "iptables" where nobody chose a mode, set it to nftables to make this explicit`)
		c.Mode = ""
	}
	names := v1alpha1Names(v1alpha2.Mode(c.Mode))
	if c.Mode != "" {
		return names
	}
	from, to := &c.IPTables, &c.NFTables
	if to.MasqueradeBit == nil && from.MasqueradeBit != nil {
		to.MasqueradeBit = from.MasqueradeBit
		names["nftables.masqueradeBit"] = "iptables.masqueradeBit"
	}
	if from.MasqueradeAll {
		to.MasqueradeAll = true
		names["linux.masqueradeAll"] = "iptables.masqueradeAll"
	}
	// Together: kube-proxy has checked that these two fit each other.
	unset := metav1.Duration{}
	if to.SyncPeriod == unset && to.MinSyncPeriod == unset {
		to.SyncPeriod, to.MinSyncPeriod = from.SyncPeriod, from.MinSyncPeriod
		names["syncPeriod"], names["minSyncPeriod"] = "iptables.syncPeriod", "iptables.minSyncPeriod"
	}
	return names
}

// chosenByKubeadm reports whether only kubeadm chose the mode: since v1.37 it writes out kube-proxy's default.
func chosenByKubeadm(c *kubeproxyv1alpha1.KubeProxyConfiguration) bool {
	return v1alpha2.Mode(c.Mode) == v1alpha2.ModeIPTables &&
		c.ClientConnection.Kubeconfig == kubeadmKubeconfig &&
		c.IPTables == kubeproxyv1alpha1.KubeProxyIPTablesConfiguration{}
}

// Watch returns an error when the file has changed, so that the process exits, and nil when ctx ends. It watches the
// directories of the file and of the link's target, because in the volume of a ConfigMap only a link changes. Where they
// cannot be watched, it reads the file once a minute. A file that is gone or empty may be about to be overwritten, so it
// waits.
func (f *File) Watch(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("file", f.Path)
	watcher, err := fsnotify.NewWatcher()
	if err != nil { // no inotify instance is left
		logger.Error(err, "Cannot watch the configuration, reading it now and then", "every", f.rescan)
		return f.poll(ctx)
	}
	defer watcher.Close()
	for {
		// Before each look, since the link may lead elsewhere now. Adding twice does nothing.
		if err := f.follow(watcher); err != nil { // no inotify watch is left
			logger.Error(err, "Cannot watch the configuration, reading it now and then", "every", f.rescan)
			return f.poll(ctx)
		}
		if err := f.changed(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case err := <-watcher.Errors:
			logger.Error(err, "Watch of the configuration lost track, reading it again")
		}
	}
}

// poll is Watch without notices.
func (f *File) poll(ctx context.Context) error {
	for {
		if err := f.changed(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.rescan):
		}
	}
}

// changed returns an error if the file has another text than at the start.
func (f *File) changed() error {
	if data, err := os.ReadFile(f.Path); err == nil && len(data) > 0 && !bytes.Equal(data, f.data) {
		return fmt.Errorf("configuration %s has changed: exiting, to be restarted with it", f.Path)
	}
	return nil
}

// follow watches the directories in which the file can change.
func (f *File) follow(watcher *fsnotify.Watcher) error {
	if target, err := filepath.EvalSymlinks(f.Path); err == nil {
		// It may be gone before it is watched; then the link has changed, which is seen.
		_ = watcher.Add(filepath.Dir(target))
	}
	return watcher.Add(filepath.Dir(f.Path))
}
