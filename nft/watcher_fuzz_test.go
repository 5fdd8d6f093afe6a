package nft

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAnnouncements shows that no series of announcements makes a Watcher fall over: any process with CAP_NET_ADMIN can
// commit what the kernel then announces. The first byte of the data says how many bytes the first message has, and so on;
// each begins with its type.
func FuzzAnnouncements(f *testing.F) {
	for _, family := range Families {
		table := everything(family)
		tx := Diff(nil, table)
		tx.Append(Diff(table, nil))
		messages, err := tx.encode()
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range messages {
			if len(m.Data) < 255 {
				f.Add(append([]byte{byte(len(m.Data) + 1), byte(m.Header.Type)}, m.Data...))
			}
		}
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		w := &Watcher{table: "kube-proxy", sets: map[identity]*Set{{FamilyIP, "cluster-ips"}: {Name: "cluster-ips", Key: Concat{IPDaddr}}}}
		for len(data) > 1 {
			length := min(int(data[0]), len(data)-1)
			message := data[1 : 1+length]
			data = data[1+length:]
			if length == 0 {
				continue
			}
			w.announce(reply{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | uint16(message[0]), Data: message[1:]}, func(a Announcement) {
				if a.Kind == "" || a.Table != w.table && a.What != "" {
					t.Errorf("announced %+v", a)
				}
			})
		}
	})
}
