/* The first program in the machine: brings in the modules of its disk and goes on in it. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const modules[] = {
    "/virtio_ring.ko", "/virtio.ko", "/virtio_pci_modern_dev.ko", "/virtio_pci_legacy_dev.ko",
    "/virtio_pci.ko", "/virtio_blk.ko"};

int main(void)
{
	for (int i = 0; i < 6; i++) {
		int file = open(modules[i], O_RDONLY | O_CLOEXEC);

		if (file < 0 || syscall(SYS_finit_module, file, "", 0) < 0) perror(modules[i]);
	}
	mkdir("/dev", 0755);
	mkdir("/root", 0755);
	mount("none", "/dev", "devtmpfs", 0, NULL);
	for (int i = 0; i < 100 && access("/dev/vda", F_OK) < 0; i++) usleep(100000);
	if (mount("/dev/vda", "/root", "ext4", 0, NULL) < 0) perror("/dev/vda");
	umount2("/dev", MNT_DETACH);
	if (chdir("/root") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0)
		perror("/root");
	execl("/sbin/init", "/sbin/init", (char *)NULL);
	perror("/sbin/init");
	return 1;
}
