package compiler

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/nftproxy/nftproxy/model"
)

// maxAffinityName leaves room for prefixes: the kernel takes names of up to 255 bytes (NFT_NAME_MAXLEN).
const maxAffinityName = 200

// affinityName returns what the names of a Service port's maps and chains end in: "namespace.service.tcp.port",
// without ".port" when the port has no name. A slash would make kube-proxy, when it takes the tables over, delete the
// chains as its own. Names that Kubernetes would not allow, which can come
// from a manifest, are replaced by a hash of the whole: nft could not list them.
func affinityName(id model.PortID) string {
	parts := []string{id.Namespace, id.Service, strings.ToLower(id.Protocol.String())}
	if id.Port != "" {
		parts = append(parts, id.Port)
	}
	name := strings.Join(parts, ".")
	for _, part := range parts {
		if !isName(part) || len(name) > maxAffinityName {
			sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts)) // quoted, since such parts may have dots
			return "_" + hex.EncodeToString(sum[:16])
		}
	}
	return name
}

// isName reports whether a name is made of what Kubernetes allows in the names of namespaces, Services and ports.
func isName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}
