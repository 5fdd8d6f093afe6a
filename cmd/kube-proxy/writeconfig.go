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
	if err := o.checkMode(); err != nil {
		logger.Info("Configuration warning", "warning", err.Error())
	}
	logger.Info("Wrote configuration", "file", o.writeConfigTo, "version", o.writeConfigVersion)
	return nil
}

// checkMode returns an error that names the flag or the file for a mode that this proxy does not have.
func (o *options) checkMode() error {
	if o.file == nil {
		return config.CheckMode(o.config.Mode, flagNames())
	}
	if err := config.CheckMode(o.config.Mode, nil); err != nil {
		return fmt.Errorf("configuration %s: %w", o.file.Path, err)
	}
	return nil
}
