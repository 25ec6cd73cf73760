/* An intrusive, doubly linked, circular list: the node is a member of the object.
 *
 * A list head is a node too. Nothing is allocated; objects are owned by whoever made them. Every
 * node must be initialised before use; one that is in no list points at itself.
 */
#ifndef KV_COMMON_COLLECT_LIST_H
#define KV_COMMON_COLLECT_LIST_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kv_list {
	struct kv_list *next;
	struct kv_list *previous;
};

/* The object that holds `node` as its member. */
#define KV_CONTAINER_OF(node, type, member)                                                        \
	((type *)(void *)((char *)(node)-offsetof(type, member)))

/* `position` walks the nodes; the current node must stay in the list. */
#define KV_LIST_EACH(position, list)                                                               \
	for ((position) = (list)->next; (position) != (list); (position) = (position)->next)

/* As above, but the current node may be removed; `following` is a second variable for the walk. */
#define KV_LIST_EACH_SAFE(position, following, list)                                               \
	for ((position) = (list)->next, (following) = (position)->next; (position) != (list);          \
	     (position) = (following), (following) = (position)->next)

static inline void kv_list_init(struct kv_list *list)
{
	list->next = list;
	list->previous = list;
}

static inline bool kv_list_empty(const struct kv_list *list)
{
	return list->next == list;
}

static inline void kv_list_link(
    struct kv_list *node, struct kv_list *previous, struct kv_list *next)
{
	node->previous = previous;
	node->next = next;
	previous->next = node;
	next->previous = node;
}

/* `node` must be in no list. */
static inline void kv_list_push_back(struct kv_list *list, struct kv_list *node)
{
	kv_list_link(node, list->previous, list);
}

static inline void kv_list_push_front(struct kv_list *list, struct kv_list *node)
{
	kv_list_link(node, list, list->next);
}

/* Take the node out of its list, if it is in one. */
static inline void kv_list_remove(struct kv_list *node)
{
	node->previous->next = node->next;
	node->next->previous = node->previous;
	kv_list_init(node);
}

static inline struct kv_list *kv_list_first(const struct kv_list *list)
{
	return kv_list_empty(list) ? NULL : list->next;
}

static inline struct kv_list *kv_list_last(const struct kv_list *list)
{
	return kv_list_empty(list) ? NULL : list->previous;
}

static inline struct kv_list *kv_list_pop_front(struct kv_list *list)
{
	struct kv_list *node = kv_list_first(list);

	if (node) kv_list_remove(node);
	return node;
}

/* Put the node at the end of `list`, whichever list it is in now: the touch of an LRU list. */
static inline void kv_list_move_back(struct kv_list *list, struct kv_list *node)
{
	kv_list_remove(node);
	kv_list_push_back(list, node);
}

/* Append all nodes of `from` to `list` and leave `from` empty. */
static inline void kv_list_append(struct kv_list *list, struct kv_list *from)
{
	if (kv_list_empty(from)) return;
	from->next->previous = list->previous;
	list->previous->next = from->next;
	from->previous->next = list;
	list->previous = from->previous;
	kv_list_init(from);
}

#ifdef __cplusplus
}
#endif
#endif
