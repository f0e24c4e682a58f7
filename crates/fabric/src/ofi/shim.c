/* Wraps the calls of libfabric for `ffi.rs`. They are inline functions, which Rust cannot call.
 *
 * The wrapper requests all features that the guarantees of a link need: reliable unconnected
 * endpoints, messages in order, one-sided operations and atomics, progress without calls at the
 * target, and completions that wake a file descriptor. A provider that lacks one of them is refused
 * when its domain is opened. The provider decides whether the keys and addresses of registered
 * memory are its own or those that the caller proposes.
 *
 * A buffer is a range of an endpoint's staging memory. Callers pass its offset and length, which
 * the functions below check. A token is a small number that identifies an operation and its
 * completion. A result below 0 is a negative error code of libfabric.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#if FI_MAJOR_VERSION != 1 || FI_MINOR_VERSION < 17
#error "libfabric 1.17 or a later 1.x is needed"
#endif

struct apo_domain {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
};

struct apo_end {
    struct apo_domain *owner;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_mr *mr;
    void *desc;
    unsigned char *staging;
    uint64_t staging_bytes;
    uint32_t tokens;
    int fd;
    _Atomic(fi_addr_t) peer;
    struct fi_context2 *contexts;
};

struct apo_completion {
    uint32_t token;
    int32_t error;
    uint64_t bytes;
};

/* Properties of a provider. `ffi.rs` has a struct with the same layout. */
struct apo_facts {
    uint64_t message_bytes_max;
    uint32_t read_after_read;
    uint32_t read_after_write;
    uint32_t write_after_write;
    uint32_t write_after_read;
};

static int failed(const char *what, int code, char *text, uint64_t text_bytes) {
    snprintf(text, text_bytes, "%s: %s", what, fi_strerror(-code));
    return code;
}

static struct fi_info *wishes(const char *provider) {
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->control_progress = FI_PROGRESS_AUTO;
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider);
    return hints;
}

static void note_facts(const struct fi_info *info, struct apo_facts *facts) {
    uint64_t order = info->tx_attr->msg_order & info->rx_attr->msg_order;
    facts->message_bytes_max = info->ep_attr->max_msg_size;
    facts->read_after_read = (order & FI_ORDER_RMA_RAR) == FI_ORDER_RMA_RAR;
    facts->read_after_write =
        (order & FI_ORDER_RMA_RAW) == FI_ORDER_RMA_RAW && info->ep_attr->max_order_raw_size == SIZE_MAX;
    facts->write_after_write =
        (order & FI_ORDER_RMA_WAW) == FI_ORDER_RMA_WAW && info->ep_attr->max_order_waw_size == SIZE_MAX;
    facts->write_after_read =
        (order & FI_ORDER_RMA_WAR) == FI_ORDER_RMA_WAR && info->ep_attr->max_order_war_size == SIZE_MAX;
}

void apo_domain_close(struct apo_domain *domain) {
    if (domain->domain)
        fi_close(&domain->domain->fid);
    if (domain->fabric)
        fi_close(&domain->fabric->fid);
    if (domain->info)
        fi_freeinfo(domain->info);
    free(domain);
}

/* Opens a domain of `provider`. `local` is the numeric address of the network interface. */
int apo_domain_open(const char *provider, const char *local, struct apo_domain **out, struct apo_facts *facts,
                    char *text, uint64_t text_bytes) {
    struct apo_domain *domain = calloc(1, sizeof *domain);
    struct fi_info *hints = wishes(provider);
    int code = -FI_ENOMEM;
    if (!domain || !hints)
        goto memory;
    code = fi_getinfo(FI_VERSION(1, 17), local, "0", FI_SOURCE | FI_NUMERICHOST, hints, &domain->info);
    fi_freeinfo(hints);
    hints = NULL;
    if (code) {
        failed("libfabric has no provider of this name at this address, or the provider lacks atomics, ordered "
               "messages or automatic progress",
               code, text, text_bytes);
        goto close;
    }
    if ((code = fi_fabric(domain->info->fabric_attr, &domain->fabric, NULL))) {
        failed("fi_fabric", code, text, text_bytes);
        goto close;
    }
    if ((code = fi_domain(domain->fabric, domain->info, &domain->domain, NULL))) {
        failed("fi_domain", code, text, text_bytes);
        goto close;
    }
    note_facts(domain->info, facts);
    *out = domain;
    return 0;
memory:
    failed("no memory", code, text, text_bytes);
    if (hints)
        fi_freeinfo(hints);
close:
    if (domain)
        apo_domain_close(domain);
    return code;
}

/* Registers `bytes` at `base`, so that peers can access them. The bits of `rights` permit READ (1),
 * WRITE (2) and atomics (4). libfabric has no right for atomics alone, so they imply the other two.
 * The region gets the key `wanted` unless the provider chooses keys itself. */
int apo_region_open(struct apo_domain *domain, void *base, uint64_t bytes, uint32_t rights, uint64_t wanted,
                    struct fid_mr **out, uint64_t *key, uint64_t *address) {
    uint64_t access = 0;
    uint64_t key_bytes = domain->info->domain_attr->mr_key_size;
    uint64_t mode = (uint64_t)domain->info->domain_attr->mr_mode;
    if (rights & 5)
        access |= FI_REMOTE_READ;
    if (rights & 6)
        access |= FI_REMOTE_WRITE;
    if (key_bytes > 8)
        return -FI_ENOSYS;
    if (key_bytes < 8)
        wanted &= ((uint64_t)1 << (8 * key_bytes)) - 1;
    int code = fi_mr_reg(domain->domain, base, bytes, access, 0, wanted, 0, out, NULL);
    if (code)
        return code;
    *key = fi_mr_key(*out);
    *address = (mode & FI_MR_VIRT_ADDR) ? (uint64_t)(uintptr_t)base : 0;
    return 0;
}

int apo_region_close(struct fid_mr *region) { return fi_close(&region->fid); }

int apo_end_close(struct apo_end *end) {
    if (end->ep)
        fi_close(&end->ep->fid);
    if (end->cq)
        fi_close(&end->cq->fid);
    if (end->av)
        fi_close(&end->av->fid);
    if (end->mr)
        fi_close(&end->mr->fid);
    free(end->contexts);
    free(end);
    return 0;
}

static int end_parts(struct apo_end *end, const char **what) {
    struct fid_domain *domain = end->owner->domain;
    struct fi_info *info = end->owner->info;
    struct fi_cq_attr cq = {.size = end->tokens + 64, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    struct fi_av_attr av = {.type = info->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE
                                                                               : info->domain_attr->av_type,
                            .count = 1};
    int code;
    *what = "fi_mr_reg of the staging memory";
    if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
        uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
        if ((code = fi_mr_reg(domain, end->staging, end->staging_bytes, access, 0,
                              (uint64_t)(uintptr_t)end->staging, 0, &end->mr, NULL)))
            return code;
        end->desc = fi_mr_desc(end->mr);
    }
    *what = "fi_cq_open with a descriptor to wait on";
    if ((code = fi_cq_open(domain, &cq, &end->cq, NULL)))
        return code;
    if ((code = fi_control(&end->cq->fid, FI_GETWAIT, &end->fd)))
        return code;
    *what = "fi_av_open";
    if ((code = fi_av_open(domain, &av, &end->av, NULL)))
        return code;
    *what = "fi_endpoint";
    if ((code = fi_endpoint(domain, info, &end->ep, NULL)))
        return code;
    if ((code = fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV)))
        return code;
    if ((code = fi_ep_bind(end->ep, &end->av->fid, 0)))
        return code;
    if ((code = fi_enable(end->ep)))
        return code;
    *what = "atomics of 8-byte words";
    size_t count = 0;
    if ((code = fi_compare_atomicvalid(end->ep, FI_UINT64, FI_CSWAP, &count)) || count < 1)
        return code ? code : -FI_ENOSYS;
    if ((code = fi_fetch_atomicvalid(end->ep, FI_UINT64, FI_SUM, &count)) || count < 1)
        return code ? code : -FI_ENOSYS;
    return 0;
}

/* Opens an endpoint for one peer. At most `tokens` operations may be in flight at the same time. */
int apo_end_open(struct apo_domain *domain, void *staging, uint64_t staging_bytes, uint32_t tokens,
                 struct apo_end **out, char *text, uint64_t text_bytes) {
    struct apo_end *end = calloc(1, sizeof *end);
    const char *what = "no memory";
    int code = -FI_ENOMEM;
    if (!end)
        return failed(what, code, text, text_bytes);
    end->owner = domain;
    end->staging = staging;
    end->staging_bytes = staging_bytes;
    end->tokens = tokens;
    end->peer = FI_ADDR_NOTAVAIL;
    end->contexts = calloc(tokens, sizeof *end->contexts);
    if (end->contexts && !(code = end_parts(end, &what))) {
        *out = end;
        return 0;
    }
    apo_end_close(end);
    return failed(what, code, text, text_bytes);
}

/* Writes the name of the endpoint, which its peer needs, to `name`. `bytes` is the size of that
 * buffer, and after the call the length of the name. */
int apo_end_name(struct apo_end *end, unsigned char *name, uint64_t *bytes) {
    size_t length = *bytes;
    int code = fi_getname(&end->ep->fid, name, &length);
    *bytes = length;
    return code;
}

/* Sets the peer of the endpoint to the one with this name. Returns an error if the name does not
 * have the length of the endpoint's own name. */
int apo_end_join(struct apo_end *end, const unsigned char *name, uint64_t bytes) {
    unsigned char own[256];
    uint64_t own_bytes = sizeof own;
    int code = apo_end_name(end, own, &own_bytes);
    if (code)
        return code;
    /* The first two bytes of a socket address are its family. With a longer family, libfabric would
     * read past the end of the name, so the family must be that of this endpoint. */
    if (own_bytes != bytes || (bytes >= 2 && memcmp(own, name, 2) != 0 &&
                               (end->owner->info->addr_format == FI_SOCKADDR ||
                                end->owner->info->addr_format == FI_SOCKADDR_IN ||
                                end->owner->info->addr_format == FI_SOCKADDR_IN6)))
        return -FI_EINVAL;
    fi_addr_t peer = FI_ADDR_NOTAVAIL;
    int inserted = fi_av_insert(end->av, name, 1, &peer, 0, NULL);
    end->peer = peer;
    return inserted == 1 ? 0 : (inserted < 0 ? inserted : -FI_EADDRNOTAVAIL);
}

int apo_end_fd(const struct apo_end *end) { return end->fd; }

/* Returns 0 if the caller may wait for the file descriptor now, and -FI_EAGAIN if completions are
 * ready, so that a wait could miss them. */
int apo_end_may_sleep(struct apo_end *end) {
    struct fid *fids[1] = {&end->cq->fid};
    return fi_trywait(end->owner->fabric, fids, 1);
}

static int bad(const struct apo_end *end, uint32_t token, uint64_t at, uint64_t bytes) {
    return token >= end->tokens || at > end->staging_bytes || bytes > end->staging_bytes - at;
}

int apo_read(struct apo_end *end, uint32_t token, uint64_t at, uint64_t bytes, uint64_t address, uint64_t key) {
    if (bad(end, token, at, bytes))
        return -FI_EINVAL;
    return (int)fi_read(end->ep, end->staging + at, bytes, end->desc, end->peer, address, key,
                        &end->contexts[token]);
}

int apo_write(struct apo_end *end, uint32_t token, uint64_t at, uint64_t bytes, uint64_t address, uint64_t key) {
    if (bad(end, token, at, bytes))
        return -FI_EINVAL;
    struct iovec local = {.iov_base = end->staging + at, .iov_len = bytes};
    struct fi_rma_iov remote = {.addr = address, .len = bytes, .key = key};
    struct fi_msg_rma message = {.msg_iov = &local,
                                 .desc = &end->desc,
                                 .iov_count = 1,
                                 .addr = end->peer,
                                 .rma_iov = &remote,
                                 .rma_iov_count = 1,
                                 .context = &end->contexts[token]};
    return (int)fi_writemsg(end->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* Compares and swaps a word at the peer. The buffer at `at` has three words: the new value, the
 * expected value, and space for the value that the peer had. */
int apo_compare_swap(struct apo_end *end, uint32_t token, uint64_t at, uint64_t address, uint64_t key) {
    if (bad(end, token, at, 24))
        return -FI_EINVAL;
    unsigned char *words = end->staging + at;
    return (int)fi_compare_atomic(end->ep, words, 1, end->desc, words + 8, end->desc, words + 16, end->desc,
                                  end->peer, address, key, FI_UINT64, FI_CSWAP, &end->contexts[token]);
}

/* Adds to a word at the peer. The buffer at `at` has three words: the number to add, a word that is
 * not used, and space for the value that the peer had. */
int apo_fetch_add(struct apo_end *end, uint32_t token, uint64_t at, uint64_t address, uint64_t key) {
    if (bad(end, token, at, 24))
        return -FI_EINVAL;
    unsigned char *words = end->staging + at;
    return (int)fi_fetch_atomic(end->ep, words, 1, end->desc, words + 16, end->desc, end->peer, address, key,
                                FI_UINT64, FI_SUM, &end->contexts[token]);
}

/* Sends a message. Returns 0 if a completion will follow, and 1 if the provider has copied the
 * message, which then has no completion. */
int apo_send(struct apo_end *end, uint32_t token, uint64_t at, uint64_t bytes) {
    if (bad(end, token, at, bytes))
        return -FI_EINVAL;
    if (bytes <= end->owner->info->tx_attr->inject_size) {
        int code = (int)fi_inject(end->ep, end->staging + at, bytes, end->peer);
        return code ? code : 1;
    }
    return (int)fi_send(end->ep, end->staging + at, bytes, end->desc, end->peer, &end->contexts[token]);
}

int apo_receive(struct apo_end *end, uint32_t token, uint64_t at, uint64_t bytes) {
    if (bad(end, token, at, bytes))
        return -FI_EINVAL;
    return (int)fi_recv(end->ep, end->staging + at, bytes, end->desc, FI_ADDR_UNSPEC, &end->contexts[token]);
}

static int token_of(const struct apo_end *end, const void *context, uint32_t *token) {
    uintptr_t first = (uintptr_t)end->contexts;
    uintptr_t at = (uintptr_t)context;
    if (at < first || at >= first + end->tokens * sizeof *end->contexts)
        return -FI_EOTHER;
    *token = (uint32_t)((at - first) / sizeof *end->contexts);
    return 0;
}

/* Reads at most `room` completions, and at most 64, to `out`. Returns their number. The call also
 * makes progress for providers that need it. */
int apo_poll(struct apo_end *end, struct apo_completion *out, uint32_t room) {
    struct fi_cq_msg_entry entries[64];
    ssize_t count = fi_cq_read(end->cq, entries, room < 64 ? room : 64);
    int code;
    if (count == -FI_EAGAIN)
        return 0;
    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        count = fi_cq_readerr(end->cq, &error, 0);
        if (count == -FI_EAGAIN)
            return 0;
        if (count < 0)
            return (int)count;
        /* Some providers report another error, without an operation, in addition to the error of
         * the operation. */
        if (!error.op_context)
            out[0].token = UINT32_MAX;
        else if ((code = token_of(end, error.op_context, &out[0].token)))
            return code;
        out[0].error = error.err ? error.err : FI_EOTHER;
        out[0].bytes = 0;
        return 1;
    }
    if (count < 0)
        return (int)count;
    for (ssize_t at = 0; at < count; at++) {
        if ((code = token_of(end, entries[at].op_context, &out[at].token)))
            return code;
        out[at].error = 0;
        out[at].bytes = entries[at].len;
    }
    return (int)count;
}

/* Describes an error code. */
const char *apo_error_text(int code) { return fi_strerror(code < 0 ? -code : code); }
