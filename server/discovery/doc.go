// Package discovery finds the endpoints of a pool and keeps the pool's set current.
//
// Sources (a List of entries, a watched File) publish whole sets of endpoints; a Discovery merges what they publish
// into one set and hands it to the scheduling.Pool, which keeps every instance whose UID and address stay.
//
// # Notation
//
// One line names the endpoints of one entry, the same on the command line, in the configuration and in a file:
//
//	ENTRY   = TARGET *( "," SETTING )
//	TARGET  = HOST ":" PORTS              HOST is an IPv4 address, an IPv6 address in brackets, or a DNS name
//	        | "dns+" NAME ":" PORTS       the same for a DNS name, said outright
//	        | "srv+" NAME                 DNS SRV: hosts and ports come from the answer
//	PORTS   = RANGE *( "," RANGE )        several ports are the data-parallel ranks 0, 1, 2 … in the order written
//	RANGE   = PORT | PORT "-" PORT
//	SETTING = KEY "=" VALUE               a VALUE holds no comma
//
// For example
//
//	10.0.0.5:8000
//	[2001:db8::5]:8000,engine=sglang,label.zone=a
//	10.0.0.5:8000-8003,name=vllm-0
//	vllm.internal:8000
//	srv+_http._tcp.vllm.internal,state=draining
//
// The keys are name, uid, engine (vllm, sglang, trtllm, triton), state (ready, not_ready, draining), rank (of the first
// port), metricsURL, metricsPort (of the first rank), family (ipv4, ipv6, any), kvEvents.KEY and label.KEY. The separators
// need no quoting in a shell.
//
// The keys of kvEvents say where the engine publishes the changes of its KV cache: port and replayPort (of rank 0, or
// none), ranks (behind one address), topic, bind (the engine connects to Sluice) and discover (false: it is not to be
// asked). A rank with a port of its own publishes at port + rank.
//
// A metricsURL may hold {address} (ip:port), {ip} (an IPv6 address in brackets), {port} and {rank}; where an entry can
// stand for several endpoints it must hold one of them.
//
// # Names
//
// Every address of a name is an endpoint, found by asking again at an interval. An engine on a dual-stack host is one
// engine under two addresses, so IPv6 addresses count only where the name has no IPv4 address, unless family says
// otherwise. SRV priorities and weights are not looked at: Sluice weighs endpoints itself. A temporary failure (timeout,
// SERVFAIL) keeps the last answer for as long as it lasts. An authoritative "no such name" or an answer without usable
// addresses is believed once it has held for a grace period.
package discovery
