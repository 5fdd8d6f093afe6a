package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// proxyModules are the kernel modules that the proxy needs. On a real machine the kernel loads them on demand, unless
// kernel.modules_disabled forbids it: docs/deploy.md names them for that case.
var proxyModules = []string{
	"nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_numgen", "nft_fib_ipv4", "nft_fib_ipv6", "nft_reject_ipv4", "nft_reject_ipv6", "nft_hash",
	"nft_dup_ipv4", "nft_dup_ipv6", "nf_conntrack", "nf_conntrack_netlink",
}

// testModules are those that the tests need besides. The tests' machine has no modprobe, so all are loaded at the start.
var testModules = []string{
	// Links, foreign rules, tables of iptables-nft.
	"veth", "nft_fib_inet", "nft_reject_inet", "nft_log", "nf_log_syslog", "nft_connlimit", "nf_conntrack_ftp", "nf_conntrack_tftp", "nf_conntrack_sip", "nft_limit", "nft_redir", "nft_objref", "nft_quota", "nft_compat", "xt_comment", "xt_mark", "xt_MASQUERADE",
	"xt_conntrack", "xt_addrtype", "xt_statistic", "xt_nat", "xt_REDIRECT", "xt_recent", "xt_tcpudp", "xt_set", "ip_set", "ip_set_hash_ip", "ip_tables", "ip6_tables",
	"iptable_filter", "iptable_nat", "iptable_mangle", "ip6table_filter", "ip6table_nat", "ip6table_mangle", "ipt_REJECT", "ip6t_REJECT", "tun", "bridge", "dummy", "sctp", "wireguard",
	// The mode ipvs.
	"ip_vs", "ip_vs_rr", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_bitmap_port",
}

// A module is one module of a kernel, uncompressed.
type module struct {
	name string
	data []byte
}

// modules returns the named modules and those that they need, in an order in which they can be loaded. A name
// that the kernel does not have as a module is passed over: it is built in, or not there, which the tests will tell.
func (k kernelPackage) modules(ctx context.Context, names []string) ([]module, error) {
	files, err := moduleFiles(k.tree)
	if err != nil {
		return nil, err
	}
	var out []module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		file, found := files[name]
		if seen[name] || !found {
			return nil
		}
		seen[name] = true
		data, err := readModule(ctx, file)
		if err != nil {
			return err
		}
		depends, err := moduleDepends(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		out = append(out, module{name, data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// moduleFiles finds the files of a kernel's modules by the modules' names.
func moduleFiles(tree string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		name, _, isModule := strings.Cut(filepath.Base(path), ".ko")
		if err == nil && isModule && !entry.IsDir() {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	return files, err
}

func readModule(ctx context.Context, file string) ([]byte, error) {
	if strings.HasSuffix(file, ".xz") {
		return output(exec.CommandContext(ctx, "xz", "--decompress", "--stdout", file))
	}
	return os.ReadFile(file)
}

// moduleDepends reads the modules that one needs from its section .modinfo: strings "key=value" with zeros between.
// The entry softdep names modules too, but none that matter here.
func moduleDepends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, found := bytes.CutPrefix(entry, []byte("depends=")); found && len(list) > 0 {
			names := strings.Split(string(list), ",")
			return slices.DeleteFunc(names, func(s string) bool { return s == "" }), nil
		}
	}
	return nil, nil
}
