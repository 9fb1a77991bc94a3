package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/quorate/quorate/cluster/limit"
)

// limits bound the connections to a node, so that its stores and links always have file
// descriptors. A setting of zero stands for the listener's part of the system's limit.
type limits struct {
	descriptors limit.Descriptors
	logger      *slog.Logger
	all         []*limit.Limiter
}

// tooManyRequests is the answer to HTTP clients when there are too many.
const tooManyRequests = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 10\r\n" +
	"Content-Length: 62\r\n\r\n" + `{"error":"unavailable","reason":"there are too many clients"}` + "\n"

func newLimits(logger *slog.Logger) (*limits, error) {
	files, err := limit.Files()
	if err != nil {
		return nil, err
	}
	descriptors, err := limit.Divide(files)
	if err != nil {
		return nil, err
	}
	return &limits{descriptors: descriptors, logger: logger}, nil
}

// allotment is the limit of plain listeners and their TLS counterparts together.
type allotment struct {
	name, secure   string
	setting, share int
	config         limit.Config
}

// limiter returns the limit of one of them. Over TLS nobody can be answered.
func (c *limits) limiter(b allotment, secure bool) *limit.Limiter {
	if secure {
		b.name, b.config.Answer = b.secure, ""
	}
	return c.bound(b.name, b.setting, b.share, b.config)
}

// bound returns the limit for a listener. setting is the number of connections allowed by its
// setting, share the number allowed by the system.
func (c *limits) bound(name string, setting, share int, more limit.Config) *limit.Limiter {
	if setting > share {
		c.logger.Warn("the limit of open files allows fewer connections than the setting", "listener", name, "setting", setting, "allowed", share)
	}
	more.Name, more.Max, more.Logger = name, limit.Smaller(setting, share), c.logger
	one := limit.New(more)
	c.all = append(c.all, one)
	return one
}

// status reports the state of the limits.
func (c *limits) status() []limit.Status {
	list := make([]limit.Status, len(c.all))
	for i, one := range c.all {
		list[i] = one.Status()
	}
	return list
}

// maxClients is how many clients may be connected, so that those beyond can be told so before
// sockets run out.
func (c *limits) maxClients(setting int) int {
	return limit.Smaller(setting, c.descriptors.Clients-c.descriptors.Clients/8)
}

// listenWithin listens at an address with a limited number of connections.
func listenWithin(c *limit.Limiter, network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return c.Listen(l), nil
}
