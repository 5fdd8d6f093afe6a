package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/nftproxy/nftproxy/compiler"
	"github.com/nftproxy/nftproxy/nft"
)

const tableName = compiler.TableName

// sharedChain is the load balancer that the demo explains.
const sharedChain = "cluster-4"

// explain prints what the kernel holds, read back over netlink.
func (d *demo) explain(ctx context.Context) error {
	d.say("\n5. What the kernel holds now\n")
	var tables []*nft.Table
	for _, family := range nft.Families {
		t, err := d.rules.ReadTable(ctx, family, tableName)
		if err != nil {
			return err
		}
		if t == nil || t.Chain(sharedChain) == nil {
			return fmt.Errorf("table %s %s has no chain %s", family, tableName, sharedChain)
		}
		tables = append(tables, t)
	}
	d.printElements(tables)
	d.printChains(tables[0])
	d.printShared(tables[0])
	return d.printCommands(ctx)
}

// printElements prints how many elements each set and map has, a column for each table.
func (d *demo) printElements(tables []*nft.Table) {
	d.say("    %-40s%8s%8s", "table "+tableName, "ip", "ip6")
	for _, s := range tables[0].Sets {
		d.say("    %-40s%8d%8d", "elements of "+s.Kind()+" "+s.Name, s.Len(), elementsOf(tables[1], s.Name))
	}
	rules := func(t *nft.Table) (n int) {
		for _, c := range t.Chains {
			n += len(c.Rules)
		}
		return n
	}
	d.say("    %-40s%8d%8d", "chains", len(tables[0].Chains), len(tables[1].Chains))
	d.say("    %-40s%8d%8d", "rules", rules(tables[0]), rules(tables[1]))
}

func elementsOf(t *nft.Table, set string) int {
	if s := t.Set(set); s != nil {
		return s.Len()
	}
	return 0
}

// printChains prints the chains' names by what they are there for.
func (d *demo) printChains(t *nft.Table) {
	var base, fixed, balancers []string
	for _, c := range t.Chains {
		switch {
		case c.Hook != "":
			base = append(base, c.Name)
		case strings.HasSuffix(strings.TrimRightFunc(c.Name, unicode.IsDigit), "-"):
			balancers = append(balancers, c.Name)
		default:
			fixed = append(fixed, c.Name)
		}
	}
	for _, group := range []struct {
		title string
		names []string
	}{
		{"chains that the kernel calls", base},
		{"chains that are always there", fixed},
		{"chains that choose an endpoint, one for each kind of address and number of endpoints", balancers},
	} {
		d.say("\n    %s:", group.title)
		for _, line := range wrap(group.names, 84) {
			d.say("        %s", line)
		}
	}
}

// wrap joins words with spaces to lines of at most width, or of one word.
func wrap(words []string, width int) []string {
	var lines []string
	for _, word := range words {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// printShared prints the load balancer that two Services share, and their elements.
func (d *demo) printShared(t *nft.Table) {
	d.say("\n    No rule belongs to a Service: shop/web and shop/log are elements of the same maps,")
	for _, e := range t.Set("service-ips").Elements() {
		if e.Verdict.Chain == sharedChain {
			d.say("        %s", t.Set("service-ips").FormatElement(e))
		}
	}
	d.say("\n    and share chain %s, as every ClusterIP with 4 endpoints does:", sharedChain)
	for _, r := range t.Chain(sharedChain).Rules {
		d.say("        %s", r)
	}
	d.say(`
    It marks clients from outside the cluster for masquerading, draws a number from 0 to 3
    and looks up the endpoint in the slot of that number. The last rule takes slot 0 should the
    drawn slot vanish in that very instant.`)
}

// printCommands tells how to see all of it, and makes sure that this works.
func (d *demo) printCommands(ctx context.Context) error {
	live, err := runOnNode(ctx, d.lab.Node, d.programs.ruledump, "live")
	if err != nil {
		return err
	}
	ruledump := short(d.programs.ruledump)
	d.say(`
    To look further:
        on a node, as root: both tables (here %d lines)
            %s live
        the same with nft
            nft list table ip %s
        without privileges: what the manifests of this demo become
            %s compile --manifests hack/demo/manifests --node node-1`,
		bytes.Count(live, []byte("\n")), ruledump, tableName, ruledump)
	return nil
}
