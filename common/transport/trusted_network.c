#define _DEFAULT_SOURCE /* IFF_UP */

#include "common/transport/trusted_network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/parse.h"

struct range {
	uint32_t address, mask; /* in the host's order */
};

/* False when it does not begin with a digit, as no interface's name here does. */
static bool is_range(const char *text)
{
	return *text >= '0' && *text <= '9';
}

static enum kv_status parse_range(const char *text, struct range *range)
{
	const char *slash = strchr(text, '/');
	const size_t length = slash ? (size_t)(slash - text) : strlen(text);
	char address[INET_ADDRSTRLEN] = "";
	struct in_addr parsed;
	uint32_t bits = 32;
	bool fine = length < sizeof address;

	if (fine) memcpy(address, text, length);
	fine = fine && inet_pton(AF_INET, address, &parsed) == 1;
	if (fine && slash) fine = kv_parse_u32(slash + 1, &bits) == KV_OK && bits >= 1 && bits <= 32;
	if (!fine)
		return kv_fail(KV_INVALID,
		    "trusted network \"%s\" is not understood: write an interface (eth1), an IPv4 address, "
		    "or a network (10.0.0.0/24)",
		    text);
	range->mask = ~UINT32_C(0) << (32 - bits);
	range->address = ntohl(parsed.s_addr);
	return KV_OK;
}

enum kv_status kv_trusted_network_check(const char *text)
{
	struct range range;

	if (is_range(text)) return parse_range(text, &range);
	if (strlen(text) < sizeof((struct kv_trusted_network){0}).device && !strpbrk(text, "/, \t"))
		return KV_OK;
	return kv_fail(KV_INVALID,
	    "trusted network \"%s\" is not understood: one interface, address or network is named",
	    text);
}

static enum kv_status find_rdma(const char *text, struct kv_trusted_network *network)
{
	char path[128];

	snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", (int)strcspn(text, ":"), text);
	if (access(path, F_OK) != 0)
		return kv_fail(
		    KV_INVALID, "trusted network \"%s\": this host has no such RDMA device", text);
	snprintf(network->device, sizeof network->device, "%s", text);
	network->rdma = true;
	return KV_OK;
}

/* An interface's first address is the one that UCX takes. */
static bool seen_before(const struct ifaddrs *all, const struct ifaddrs *one)
{
	for (; all != one; all = all->ifa_next)
		if (all->ifa_addr && all->ifa_addr->sa_family == AF_INET &&
		    strcmp(all->ifa_name, one->ifa_name) == 0)
			return true;
	return false;
}

static bool fits(const char *text, const struct range *range, const struct ifaddrs *one)
{
	struct sockaddr_in address;

	if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) return false;
	if (!is_range(text)) return strcmp(text, one->ifa_name) == 0;
	memcpy(&address, one->ifa_addr, sizeof address);
	return ((ntohl(address.sin_addr.s_addr) ^ range->address) & range->mask) == 0;
}

static enum kv_status take(const char *text, const struct ifaddrs *all, const struct ifaddrs *one,
    struct kv_trusted_network *network)
{
	struct sockaddr_in address;

	if (seen_before(all, one))
		return kv_fail(KV_INVALID,
		    "trusted network \"%s\": interface %s has another address first, to which UCX would "
		    "bind: name that one, or give this one an interface of its own",
		    text, one->ifa_name);
	if (!(one->ifa_flags & IFF_UP))
		return kv_fail(
		    KV_INVALID, "trusted network \"%s\": interface %s is down", text, one->ifa_name);
	memcpy(&address, one->ifa_addr, sizeof address);
	snprintf(network->device, sizeof network->device, "%s", one->ifa_name);
	if (!inet_ntop(AF_INET, &address.sin_addr, network->address, sizeof network->address))
		return kv_fail(KV_INTERNAL, "an address cannot be printed");
	return KV_OK;
}

enum kv_status kv_trusted_network_find(const char *text, struct kv_trusted_network *network)
{
	struct kv_trusted_network found = {0};
	struct range range = {0};
	struct ifaddrs *all = NULL;
	const struct ifaddrs *one;
	enum kv_status status;

	KV_TRY(kv_trusted_network_check(text));
	if (is_range(text)) KV_TRY(parse_range(text, &range));
	if (strchr(text, ':')) {
		KV_TRY(find_rdma(text, &found));
		*network = found;
		return KV_OK;
	}
	if (getifaddrs(&all) != 0)
		return kv_fail(KV_IO, "cannot list this host's addresses: %s", strerror(errno));
	for (one = all; one && !fits(text, &range, one); one = one->ifa_next) {
	}
	status =
	    one ? take(text, all, one, &found)
	        : kv_fail(KV_INVALID, "trusted network \"%s\": no interface here has %s IPv4 address",
	              text, is_range(text) ? "such an" : "this name and an");
	freeifaddrs(all);
	if (status == KV_OK) *network = found;
	return status;
}
