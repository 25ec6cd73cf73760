#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/product.h"
#include "tests/lib/kernel_harness.h"

static void add_part(
    struct kvt_product *p, struct kv_random *random, enum kn_weight_type type, uint32_t rows)
{
	uint64_t bytes = kn_weight_row_bytes(type, p->columns) * rows;
	uint8_t *data = kvt_alloc((size_t)bytes, 1);
	uint32_t i = p->weight.part_count++;

	kvt_fill_weights(random, type, data, rows, p->columns);
	p->parts[i] = (struct kn_weight_part){type, rows, data, bytes};
	p->cuda_parts[i] =
	    (struct kn_cuda_weight_part){type, p->weight.rows, rows, dev_upload(data, (size_t)bytes)};
	p->weight.rows += rows;
}

void kvt_product_again(struct kvt_product *p)
{
	float *w = kvt_alloc(p->columns, sizeof(float));

	for (uint32_t i = 0; i < p->weight.part_count; i++)
		for (uint32_t r = 0; r < p->parts[i].rows; r++) {
			enum kn_weight_type type = p->parts[i].type;
			const uint8_t *row =
			    (const uint8_t *)p->parts[i].data + kn_weight_row_bytes(type, p->columns) * r;

			assert_int_equal(kn_dequantise_row(type, row, w, p->columns), KV_OK);
			for (uint32_t n = 0; n < p->count; n++) {
				const float *x = p->host_x + (size_t)n * p->x_stride;
				double sum = 0.0;

				for (uint32_t k = 0; k < p->columns; k++)
					sum += (double)w[k] * (double)x[k];
				p->want[(size_t)n * p->weight.rows + p->cuda_parts[i].first_row + r] = sum;
			}
		}
	kvt_free(w);
}

static void multiply_on_cpu(struct kvt_product *p)
{
	struct kvt_backend cpu;
	struct kn_weight *weight;

	assert_true(kvt_backend_open(&cpu, KN_CPU_PLAIN, 1));
	assert_int_equal(cpu.ops->weight_pack(cpu.backend, p->parts, p->weight.part_count, p->columns,
	                     KN_PRECISION_FP32, &weight),
	    KV_OK);
	struct kn_matmul_arguments a = {
	    .weight = weight,
	    .x = p->host_x,
	    .x_stride = p->x_stride,
	    .y = p->cpu,
	    .y_stride = p->weight.rows,
	    .count = p->count,
	};

	assert_int_equal(cpu.ops->matmul(cpu.backend, NULL, &a), KV_OK);
	cpu.ops->weight_destroy(cpu.backend, weight);
	kvt_backend_close(&cpu);
}

void kvt_product_create(struct kvt_product *p, uint32_t count, uint32_t columns,
    uint32_t part_count, const enum kn_weight_type *types, const uint32_t *rows)
{
	struct kv_random random;
	size_t inputs = (size_t)count * (columns + 3);

	assert_true(part_count <= KVT_PRODUCT_PARTS);
	*p = (struct kvt_product){.count = count, .columns = columns, .x_stride = columns + 3};
	p->weight.columns = columns;
	p->weight.parts = p->cuda_parts;
	p->weight.precision = KN_PRECISION_FP32;
	kv_random_seed(&random, columns * 31u + (uint32_t)types[0]);
	for (uint32_t i = 0; i < part_count; i++)
		add_part(p, &random, types[i], rows[i]);
	p->host_x = kvt_alloc(inputs, sizeof(float));
	kvt_fill_peaky(&random, p->host_x, inputs, 1.0f);
	p->x = dev_upload(p->host_x, inputs * sizeof(float));
	p->want = kvt_alloc((size_t)count * p->weight.rows, sizeof(double));
	p->cpu = kvt_alloc((size_t)count * p->weight.rows, sizeof(float));
	kvt_product_again(p);
	multiply_on_cpu(p);
}

void kvt_product_destroy(struct kvt_product *p)
{
	for (uint32_t i = 0; i < p->weight.part_count; i++) {
		kvt_free((void *)(uintptr_t)p->parts[i].data);
		dev_free((void *)(uintptr_t)p->cuda_parts[i].data);
	}
	dev_free(p->x);
	kvt_free(p->host_x);
	kvt_free(p->want);
	kvt_free(p->cpu);
}
