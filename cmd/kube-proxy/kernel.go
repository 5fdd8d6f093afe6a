package main

import (
	"context"

	"k8s.io/klog/v2"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nftproxy/nftproxy/internal/config"
	"github.com/nftproxy/nftproxy/internal/config/v1alpha2"
	"github.com/nftproxy/nftproxy/nft"
	"github.com/nftproxy/nftproxy/sysctl"
)

// initOnly does the work that needs more privileges than CAP_NET_ADMIN, so that run needs CAP_NET_ADMIN alone.
func initOnly(ctx context.Context, o *options) error {
	conn, err := nft.Dial(nft.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := prepareKernel(ctx, o, conn); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("System initialized and --init-only specified")
	return nil
}

// prepareKernel probes the required kernel features, which loads modules, and then sets the modules' sysctls. It
// returns the names of missing sysctls.
func prepareKernel(ctx context.Context, o *options, conn *nft.Conn) (missing []string, err error) {
	families := nft.Families[:]
	if !(sysctl.Tree{}).KernelHasIPv6() {
		families = []nft.Family{nft.FamilyIP}
		klog.FromContext(ctx).Info("The kernel has no IPv6; serving IPv4 alone")
	}
	gates, _, _ := config.FeatureGates(o.config.FeatureGates)
	if err := config.ProbeKernel(ctx, conn, families, gates); err != nil {
		return nil, err
	}
	nameDoubts(ctx, gates, o.serviceProxyName)
	missing, err = sysctl.Tree{}.SetConntrack(ctx, (*kubeproxyv1alpha1.KubeProxyConntrackConfiguration)(&o.config.Linux.Conntrack))
	if len(missing) > 0 {
		klog.FromContext(ctx).Info("Sysctls of connection tracking do not exist yet; the proxy sets them when the kernel has loaded the module nf_conntrack", "sysctls", missing)
	}
	return missing, err
}

// setOOMScore only logs an error: a proxy runs without the capability too.
func setOOMScore(ctx context.Context, c *v1alpha2.KubeProxyConfiguration) {
	if err := (sysctl.Tree{}).SetOOMScoreAdj(int(*c.Linux.OOMScoreAdj)); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot set the OOM score", "reason", err.Error())
	}
}
