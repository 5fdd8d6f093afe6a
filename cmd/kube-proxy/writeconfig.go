package main

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nftproxy/nftproxy/internal/config"
)

// writeConfig writes the configuration with all defaults. Its result need not be one that this proxy can run with:
// it may be for a kube-proxy in another mode.
func (o *options) writeConfig(ctx context.Context) error {
	lost, err := config.Write(o.config, o.writeConfigVersion, o.writeConfigTo)
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	logger := klog.FromContext(ctx)
	for _, loss := range lost {
		logger.Info("Configuration warning", "warning", fmt.Sprintf("not in %s: %s", o.writeConfigVersion, loss))
	}
	if err := o.checkRunnable(); err != nil {
		logger.Info("Configuration warning", "warning", err.Error())
	}
	logger.Info("Wrote configuration", "file", o.writeConfigTo, "version", o.writeConfigVersion)
	return nil
}

// checkRunnable refuses a mode that this proxy does not have, and settings without effect beside a node-local server. The
// error names the file or the flag.
func (o *options) checkRunnable() error {
	names := flagNames()
	if o.file != nil {
		names = nil
	}
	err := config.CheckMode(o.config.Mode, names)
	if err == nil {
		err = config.CheckSource(o.config, names)
	}
	if err != nil && o.file != nil {
		return fmt.Errorf("configuration %s: %w", o.file.Path, err)
	}
	return err
}
