package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Forward is a TCP door from one network to the other.
type Forward struct {
	// Listen is an address on the machine, or inside when Outward is set.
	Listen string `json:"listen"`
	// To is an address in the other network.
	To string `json:"to"`
	// Outward says that the door leads from inside to the machine.
	Outward bool `json:"outward"`
}

// setUpNetwork gives the new network a loopback, and a link with the node's address that leads nowhere: both its ends
// are here. The default route through it is needed for service addresses, which are rewritten after routing.
func setUpNetwork(address string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "node0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "nowhere0"}); err != nil {
		return fmt.Errorf("can't make a link: %w", err)
	}
	var node netlink.Link
	for _, name := range []string{"nowhere0", "node0"} {
		if node, err = netlink.LinkByName(name); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(node); err != nil {
			return err
		}
	}
	if err := netlink.AddrAdd(node, addr); err != nil {
		return err
	}
	route := netlink.Route{LinkIndex: node.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: addr.IP}
	if err := netlink.RouteAdd(&route); err != nil {
		return fmt.Errorf("can't add the default route: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// forwardTimeout bounds the making of a connection.
const forwardTimeout = 10 * time.Second

// network is where sockets are opened: a network namespace, or the process's own when it is nil.
type network struct{ namespace *os.File }

// do runs open in the network. A socket stays where it was opened, whoever uses it then.
func (n network) do(open func() error) error {
	if n.namespace == nil {
		return open()
	}
	result := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine, and does nothing else in another network.
		runtime.LockOSThread()
		if err := unix.Setns(int(n.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- open()
	}()
	return <-result
}

func (n network) listen(address string) (listener net.Listener, err error) {
	err = n.do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, err
}

func (n network) dial(address string) (conn net.Conn, err error) {
	err = n.do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, forwardTimeout)
		return err
	})
	return conn, err
}

// openForward opens a door for as long as the process lives.
func openForward(inside network, forward Forward) error {
	from, to := network{}, inside
	if forward.Outward {
		from, to = inside, network{}
	}
	listener, err := from.listen(forward.Listen)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				other, err := to.dial(forward.To)
				if err != nil {
					return
				}
				defer other.Close()
				splice(conn.(*net.TCPConn), other.(*net.TCPConn))
			}()
		}
	}()
	return nil
}

// splice passes bytes both ways, and each end's end.
func splice(one, other *net.TCPConn) {
	done := make(chan struct{})
	copyTo := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			to.Close()
		} else {
			_ = to.CloseWrite()
		}
		done <- struct{}{}
	}
	go copyTo(one, other)
	go copyTo(other, one)
	<-done
	<-done
}
